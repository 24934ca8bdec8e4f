/** What the tests use of the widget's plain JavaScript. */
declare module '*/kernel/widget.js' {
  import type { IKernel } from '../src/wire';

  export function describe(kernel: IKernel, now: Date): [string, string];
  export function keepSeconds(
    kernel: IKernel,
    limits: { keep_alive_max_seconds: number | null }
  ): number;
  export function localTimes(text: string, now: Date): string;
  export function span(seconds: number): string;
  const widget: {
    render(context: { model: { get(name: string): string }; el: HTMLElement }): () => void;
  };
  export default widget;
}
