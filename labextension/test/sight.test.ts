import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { whenSeen } from '../src/sight';
import { popUp } from './samples';

let seen: number;
let stop: () => void;

beforeEach(() => {
  seen = 0;
  vi.spyOn(document, 'hidden', 'get').mockReturnValue(false);
  vi.spyOn(document, 'hasFocus').mockReturnValue(true);
});

afterEach(() => {
  stop();
  document.body.replaceChildren();
  vi.restoreAllMocks();
});

const watch = (): void => {
  stop = whenSeen('n1', () => void seen++);
};

it('counts at once where it stands on a page that is looked at, and only once', () => {
  popUp('n1');
  watch();
  expect(seen).toBe(1);
  window.dispatchEvent(new Event('focus'));
  expect(seen).toBe(1);
});

it('waits until it stands there: one that is made is not shown yet, and perhaps never', async () => {
  watch();
  popUp('another');
  await new Promise(resolve => setTimeout(resolve));
  expect(seen).toBe(0);
  popUp('n1');
  await vi.waitFor(() => expect(seen).toBe(1));
});

it.each(['hidden', 'without the focus'])('waits while the page is %s', how => {
  const away = how === 'hidden';
  vi.mocked(document.hasFocus).mockReturnValue(away);
  const hidden = vi.spyOn(document, 'hidden', 'get').mockReturnValue(away);
  popUp('n1');
  watch();
  expect(seen).toBe(0);
  vi.mocked(document.hasFocus).mockReturnValue(true);
  hidden.mockReturnValue(false);
  if (away) {
    document.dispatchEvent(new Event('visibilitychange'));
  } else {
    window.dispatchEvent(new Event('focus'));
  }
  expect(seen).toBe(1);
});

it('is not waited for any more once it has gone', () => {
  watch();
  stop();
  popUp('n1');
  window.dispatchEvent(new Event('focus'));
  expect(seen).toBe(0);
});
