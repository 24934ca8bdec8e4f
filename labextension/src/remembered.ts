/** Of which ends this browser has told: none is told of twice, whatever the tab. */

const STORE = 'jupyter-gpu-guard:seen';
const REMEMBERED = 100;

/** Kernels whose end this browser has shown. */
export function remembered(): string[] {
  try {
    const stored: unknown = JSON.parse(localStorage.getItem(STORE) ?? '[]');
    return Array.isArray(stored) ? stored.filter(id => typeof id === 'string') : [];
  } catch {
    return []; // no storage here: shown again after a reload
  }
}

export function remember(kernelId: string): void {
  try {
    const ids = remembered().filter(id => id !== kernelId);
    localStorage.setItem(STORE, JSON.stringify([...ids, kernelId].slice(-REMEMBERED)));
  } catch {
    // No storage, or a full one: see above.
  }
}
