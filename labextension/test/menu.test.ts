import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { choose } from '../src/menu';

let button: HTMLButtonElement;

beforeEach(() => {
  button = document.createElement('button');
  document.body.append(button);
  button.focus();
});

afterEach(() => {
  button.remove();
  vi.restoreAllMocks();
});

const menu = (): HTMLElement | null => document.querySelector('.lm-Menu');
const items = (): HTMLElement[] => [...document.querySelectorAll<HTMLElement>('.lm-Menu-item')];
const ask = (): Promise<number | null> => choose(['one', 'two'], 'How many?', button);

function press(key: string): void {
  const keyCode = { ArrowDown: 40, Enter: 13, Escape: 27 }[key];
  const event = new KeyboardEvent('keydown', { key, keyCode, bubbles: true });
  menu()?.dispatchEvent(event);
}

it('can be used by keyboard, and gives the focus back', async () => {
  vi.spyOn(button, 'matches').mockImplementation(selector => selector === ':focus-visible');
  const asked = ask();
  expect(items().map(({ textContent }) => textContent)).toEqual(['one', 'two']);
  expect(menu()?.querySelector('ul')?.getAttribute('aria-label')).toBe('How many?');
  expect(document.activeElement).toBe(items()[0]);
  press('ArrowDown');
  press('Enter');
  expect(await asked).toBe(1);
  expect(menu()).toBeNull();
  expect(document.activeElement).toBe(button);
});

it('chooses nothing by itself where it was opened with a mouse', async () => {
  vi.spyOn(button, 'matches').mockReturnValue(false);
  const asked = ask();
  expect(document.querySelector('.lm-Menu-item.lm-mod-active')).toBeNull();
  press('Escape');
  expect(await asked).toBeNull();
  expect(document.activeElement).toBe(button);
});

it('is closed by a press elsewhere', async () => {
  const asked = ask();
  document.body.dispatchEvent(new MouseEvent('pointerdown', { bubbles: true }));
  expect(await asked).toBeNull();
  expect(menu()).toBeNull();
});

it('does not cover its button where there is no room below', async () => {
  const rect = (top: number, height: number): DOMRect =>
    ({ left: 10, top, bottom: top + height, height, width: 80 }) as DOMRect;
  vi.spyOn(HTMLElement.prototype, 'getBoundingClientRect').mockImplementation(function (
    this: HTMLElement
  ) {
    return this === button ? rect(700, 30) : rect(630, 100); // turned over at the button's bottom
  });
  const asked = ask();
  expect(menu()?.style.marginTop).toBe('-30px');
  press('Escape');
  await asked;
});
