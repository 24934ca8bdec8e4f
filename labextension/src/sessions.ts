/**
 * Lets the page see at once that a kernel was shut down. By itself it asks now and then, and shows the kernel as idle
 * until it does.
 */

import type { ServiceManager } from '@jupyterlab/services';
import type { GuardModel } from './model';

type Services = Pick<ServiceManager.IManager, 'kernels' | 'sessions'>;

export function followEnds(model: GuardModel, { kernels, sessions }: Services): void {
  model.ended.connect((_, kernelId) => {
    if ([...sessions.running()].some(({ kernel }) => kernel?.id === kernelId)) {
      // The session first: a notebook that loses its kernel alone would take it for one that died.
      sessions
        .refreshRunning()
        .then(() => kernels.refreshRunning())
        .catch(() => undefined); // seen at the next regular look
    }
  });
}
