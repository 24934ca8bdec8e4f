import type { ServiceManager } from '@jupyterlab/services';
import { expect, it } from 'vitest';
import { GuardModel } from '../src/model';
import { followEnds } from '../src/sessions';
import { settle, Source } from './samples';

/** Services with a session on kernel k1; every look at the server is noted. */
function services(looks: string[]): Pick<ServiceManager.IManager, 'kernels' | 'sessions'> {
  const sessions = {
    running: () => [{ kernel: null }, { kernel: { id: 'k1' } }].values(),
    refreshRunning: async () => void looks.push('sessions')
  };
  const kernels = { refreshRunning: async () => void looks.push('kernels') };
  return { sessions, kernels } as unknown as ReturnType<typeof services>;
}

it.each([
  ['k1', ['sessions', 'kernels']],
  ['k2', []]
])('looks for what is left after the end of a kernel that it knows (%s)', async (id, expected) => {
  const looks: string[] = [];
  const source = new Source();
  followEnds(new GuardModel(source), services(looks));
  source.message.emit({ type: 'culled', kernel_id: id, tombstone_url: '' });
  await settle();
  expect(looks).toEqual(expected);
});
