/** A short menu beside a button: it can be used by keyboard, and the focus goes back where it was. */

import { CommandRegistry } from '@lumino/commands';
import { MessageLoop } from '@lumino/messaging';
import { Menu } from '@lumino/widgets';

/** Opens it beside `anchor`, and gives the number of the label that was chosen; null where none was. */
export function choose(
  labels: readonly string[],
  caption: string,
  anchor: Element
): Promise<number | null> {
  const before = document.activeElement;
  const commands = new CommandRegistry();
  const menu = new Menu({ commands });
  menu.addClass('jp-ThemedContainer');
  menu.contentNode.setAttribute('aria-label', caption);
  return new Promise(resolve => {
    labels.forEach((label, index) => {
      const command = `choose:${index}`;
      commands.addCommand(command, { label, execute: () => resolve(index) });
      menu.addItem({ command });
    });
    menu.aboutToClose.connect(() => {
      if (before instanceof HTMLElement) {
        before.focus();
      }
      // What was chosen runs right after it has closed.
      queueMicrotask(() => {
        resolve(null);
        menu.dispose();
      });
    });
    openBeside(menu, anchor);
  });
}

/** Below the anchor, or above it where there is no room below. */
function openBeside(menu: Menu, anchor: Element): void {
  const place = anchor.getBoundingClientRect();
  const byKeyboard = anchor.matches(':focus-visible');
  menu.open(place.left, place.bottom);
  const found = menu.node.getBoundingClientRect();
  if (found.top < place.bottom) {
    menu.node.style.marginTop = `${place.top - found.bottom}px`;
  }
  if (byKeyboard) {
    MessageLoop.flush(); // it takes the focus now, and its first item can have it
    menu.activateNextItem();
  }
}
