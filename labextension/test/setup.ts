/** What jsdom lacks and JupyterLab's packages ask for when they are loaded. */

class Observer {
  observe(): void {
    // Nothing is ever laid out here.
  }
  unobserve(): void {
    // As above.
  }
  disconnect(): void {
    // As above.
  }
}

Object.assign(globalThis, {
  DragEvent: class DragEvent extends MouseEvent {},
  ResizeObserver: Observer,
  IntersectionObserver: Observer,
  requestIdleCallback: (callback: () => void) => setTimeout(callback),
  matchMedia: () => ({
    matches: false,
    addListener: () => undefined,
    addEventListener: () => undefined
  })
});
