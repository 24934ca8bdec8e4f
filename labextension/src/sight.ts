/**
 * When a notification stands on a page that somebody may be looking at: visible, with the focus, and shown.
 *
 * That it was made is not enough: a page may be in the background, and JupyterLab shows none while it is told not to
 * disturb. That somebody read it cannot be known.
 */

/** Calls back once, as soon as that is so; never, after what it returns was called. */
export function whenSeen(notification: string, callback: () => void): () => void {
  const look = (): void => {
    // JupyterLab gives the element the notification's id. It comes a moment later.
    if (!document.hidden && document.hasFocus() && document.getElementById(notification)) {
      stop();
      callback();
    }
  };
  const observer = new MutationObserver(look);
  const stop = (): void => {
    observer.disconnect();
    window.removeEventListener('focus', look);
    document.removeEventListener('visibilitychange', look);
  };
  observer.observe(document.body, { childList: true, subtree: true });
  window.addEventListener('focus', look);
  document.addEventListener('visibilitychange', look);
  look();
  return stop;
}
