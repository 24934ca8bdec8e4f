/** What the tests use of the widget's plain JavaScript. */
declare module '*/kernel/widget_words.js' {
  import type { IKernel } from '../src/wire';

  export function describe(kernel: IKernel, now: Date): [string, string];
  export function keepSeconds(kernel: IKernel): number;
  export function localTimes(text: string, now: Date): string;
  export function moment(time: string, now: Date): string;
  export function share(ratio: number | null): string;
  export function size(bytes: number | null): string;
  export function span(seconds: number): string;
}

declare module '*/kernel/widget_feed.js' {
  export function streamUrl(
    config: { baseUrl: string; wsUrl?: string; token?: string },
    clientId: string,
    page: string
  ): string;
}

declare module '*/kernel/widget.js' {
  const widget: {
    render(context: { model: { get(name: string): string }; el: HTMLElement }): () => void;
  };
  export default widget;
}
