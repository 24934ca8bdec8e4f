/** The plain JavaScript of the kernel half that is built into this one. */
declare module '*/kernel/countdown.js' {
  import type { ICountdown, Level } from './countdown';
  import type { IKernel } from './wire';

  export function countdown(kernel: IKernel, now: Date, stale?: boolean): ICountdown;
  export function isKept(kernel: IKernel, now: Date): boolean;
  export function levelOf(remaining: number, leads: readonly number[]): Level;
}
