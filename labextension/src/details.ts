/** All that is known of the kernel in front, as lines; and the dialog that shows them with what can be done. */

import { Dialog, showDialog } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import { Widget } from '@lumino/widgets';
import * as amounts from './amounts';
import { countdown } from './countdown';
import { type Actions, nameOf } from './keep';
import type { GuardModel } from './model';
import type { IGpu, IKernel, IKernelGpu, IReason, IStatus } from './wire';
import { full, sentence } from './words';

/** Lines for tooltip and dialog. Empty before the server has answered. */
export function detailLines(
  model: GuardModel,
  kernel: IKernel | null,
  t: TranslationBundle
): string[] {
  const status = model.status;
  if (!status) {
    return [];
  }
  const own = kernel ? kernelLines(model, kernel, status, t) : status.gpus.map(g => gpuLine(g, t));
  return [...own, ...generalLines(model, status, t)];
}

function kernelLines(
  model: GuardModel,
  kernel: IKernel,
  status: IStatus,
  t: TranslationBundle
): string[] {
  const now = model.now();
  const said = countdown(kernel, now, model.connection === 'stale');
  const tell = (reason: IReason | null): string[] => (reason ? [sentence(reason, t, now)] : []);
  return [
    `${nameOf(kernel)}: ${full(said, t, now)}`,
    ...new Set([...tell(kernel.reason), ...tell(kernel.deadline_reason)]),
    ...kernel.gpus.map(share => shareLine(share, status.gpus, t))
  ];
}

function generalLines(model: GuardModel, status: IStatus, t: TranslationBundle): string[] {
  const now = model.now();
  const { telemetry, policy } = status;
  const lines: string[] = [];
  if (status.hold) {
    lines.push(sentence(status.hold, t, now));
  }
  if (status.simulated) {
    lines.push(t.__('The GPU is simulated.'));
  }
  if (telemetry.state !== 'ok' && telemetry.reason) {
    lines.push(sentence(telemetry.reason, t, now));
  }
  if (telemetry.state === 'stale') {
    lines.push(t.__('GPU last read at %1.', amounts.clock(telemetry.last_success ?? '', now)));
  }
  if (!policy.valid && status.hold?.code !== 'policy_invalid') {
    lines.push(policy.error ? sentence(policy.error, t, now) : t.__('The policy file is wrong.'));
  }
  if (model.connection === 'stale') {
    lines.push(t.__('The server has said nothing for a minute; this may be out of date.'));
  }
  return lines;
}

function shareLine(share: IKernelGpu, gpus: IGpu[], t: TranslationBundle): string {
  const gpu = gpus.find(({ uuid }) => uuid === share.uuid);
  const name = gpu ? t.__('GPU %1 (%2)', gpu.index, gpu.name) : share.uuid;
  const use = amounts.percent(share.sm_ratio, t);
  const memory = amounts.bytes(share.memory_bytes, t);
  return share.attribution === 'inferred'
    ? t.__('%1: use %2, memory %3, probably this kernel', name, use, memory)
    : t.__('%1: use %2, memory %3', name, use, memory);
}

export function gpuLine(gpu: IGpu, t: TranslationBundle): string {
  return t.__(
    'GPU %1 (%2): use %3, memory %4 of %5',
    gpu.index,
    gpu.name,
    amounts.percent(gpu.utilization_ratio, t),
    amounts.bytes(gpu.memory_used_bytes, t),
    amounts.bytes(gpu.memory_total_bytes, t)
  );
}

interface IDeed {
  label: string;
  warn?: boolean;
  run: () => Promise<unknown>;
}

/** Asked for by the user, so it may take the focus. `anchor` is where a menu opens. */
export async function showDetails(
  model: GuardModel,
  kernel: IKernel | null,
  actions: Actions,
  t: TranslationBundle,
  anchor: Element
): Promise<void> {
  const deeds = kernel ? deedsFor(kernel, actions, t, anchor) : [];
  const answer = await showDialog({
    title: t.__('GPU Guard'),
    body: linesWidget(detailLines(model, kernel, t)),
    buttons: [
      Dialog.cancelButton({ label: t.__('Close') }),
      ...deeds.map(({ label, warn }) =>
        warn ? Dialog.warnButton({ label }) : Dialog.okButton({ label })
      )
    ],
    defaultButton: 0
  });
  await deeds.find(({ label }) => label === answer.button.label)?.run();
}

function deedsFor(
  kernel: IKernel,
  actions: Actions,
  t: TranslationBundle,
  anchor: Element
): IDeed[] {
  const deeds: IDeed[] = [
    { label: t.__('Shut down now'), warn: true, run: () => actions.askAndShutDown(kernel) }
  ];
  if (actions.isKept(kernel)) {
    deeds.push({ label: t.__('Stop keeping'), run: () => actions.stopKeeping(kernel) });
  }
  if (kernel.mode !== 'observe' && actions.longest(kernel) > 0) {
    deeds.push({ label: t.__('Keep for…'), run: () => actions.askAndKeep(kernel, anchor) });
  }
  return deeds;
}

/** The body of a dialog: one paragraph for each line. */
export function linesWidget(lines: string[]): Widget {
  const node = document.createElement('div');
  node.className = 'jp-GpuGuard-details';
  for (const line of lines) {
    const paragraph = document.createElement('p');
    paragraph.textContent = line;
    node.append(paragraph);
  }
  return new Widget({ node });
}
