/**
 * What travels between server and page: the shapes of REST and stream, and nothing else.
 *
 * Times are ISO 8601 UTC, durations seconds, sizes bytes, ratios 0 to 1. `null` means "cannot be read", never zero.
 */

export type Param = string | number | null;

export interface IReason {
  code: string;
  params: Record<string, Param>;
  text: string;
}

export type Mode = 'observe' | 'warn' | 'enforce';

export type KernelState = 'active' | 'idle' | 'warned' | 'saving' | 'culling' | 'culled' | 'failed';

export type Verdict = 'active' | 'idle' | 'stalled' | 'unknown';

export interface IWarning {
  at: string;
  /** Null for a kernel that is stuck, and has no deadline. */
  lead_seconds: number | null;
  cause?: string;
  /** When a page first told that it was seen. */
  seen_at?: string | null;
}

export interface IKernelGpu {
  uuid: string;
  memory_bytes: number | null;
  sm_ratio: number | null;
  attribution: 'kernel' | 'descendant' | 'detached' | 'inferred';
}

/** A document that some window has reported open on a kernel. */
export interface IReportedDocument {
  path: string;
  dirty: boolean;
  client_id: string;
}

export interface IKernel {
  kernel_id: string;
  name: string;
  notebooks: string[];
  state: KernelState;
  verdict: Verdict;
  /** When the kernel started, where the server says so. */
  started?: string;
  reason: IReason | null;
  executing: boolean;
  waiting_for_input: boolean;
  idle_since: string | null;
  idle_seconds: number | null;
  deadline: string | null;
  deadline_source: string | null;
  deadline_reason: IReason | null;
  /** When it would be shut down if the mode were `enforce`. */
  would_act?: string | null;
  warnings: IWarning[];
  keep_alive_until: string | null;
  keep_alive_remaining_seconds: number | null;
  /** The longest single extension, where the server gives it for each kernel. */
  keep_alive_max_seconds?: number;
  mode: Mode;
  policy: { name: string; idle_timeout_seconds: number; warn_before_seconds: number[] };
  gpus: IKernelGpu[];
  has_checkpoint: boolean;
  documents: IReportedDocument[];
}

export interface IGpu {
  uuid: string;
  index: number;
  name: string;
  memory_total_bytes: number | null;
  memory_used_bytes: number | null;
  utilization_ratio: number | null;
}

export interface ITelemetry {
  state: 'ok' | 'stale' | 'unavailable' | 'none';
  reason: IReason | null;
  last_success: string | null;
}

export interface IStatus {
  version: string;
  mode: Mode;
  gpu_source: string;
  simulated: boolean;
  server_time: string;
  user: string;
  /** Of a kernel for which no entry of a policy is; each kernel has its own. */
  limits: { keep_alive_max_seconds: number; keep_alive_total_seconds: number };
  /** Why nothing is shut down at present. */
  hold?: IReason | null;
  telemetry: ITelemetry;
  policy: { valid: boolean; hash: string | null; error: IReason | null };
  gpus: IGpu[];
  kernels: IKernel[];
  save_requests: ISaveRequest[];
}

export interface ISaveRequest {
  nonce: string;
  kernel_id: string;
  deadline: string;
  documents: {
    path: string;
    recovery_path: string | null;
    /** Another window may write the file first; by how long. */
    wait_seconds?: number;
  }[];
}

export type SaveOutcome = 'saved' | 'clean' | 'conflict' | 'read_only' | 'deleted' | 'failed';

export interface IDocumentAnswer {
  path: string;
  outcome: SaveOutcome;
  /** Of the file, after the save. */
  hash: string | null;
  recovery_path: string | null;
  /** Of the recovery copy. */
  recovery_hash: string | null;
  /** Of a copy that was handed to the server, because there was no place to write it to. */
  recovery_id: string | null;
  /** Why it is not simply saved; English, for the log. */
  error: string | null;
}

/** What is left to read after a kernel was shut down. */
export interface ITombstone {
  kernel_id: string;
  name: string;
  notebooks: string[];
  ended_at: string;
  reason: IReason | null;
  warnings: IWarning[];
  saved: {
    path: string;
    outcome: string;
    hash: string | null;
    recovery_path: string | null;
    recovery_id: string | null;
  }[];
  lost: string[];
  unanswered: { client_id: string; path: string; last_seen_dirty: boolean }[];
  /** How many of its processes went on. */
  survivors: number;
  memory_released_bytes: number | null;
}

export interface IReport {
  documents: { path: string; kernel_id: string; dirty: boolean }[];
  focused_kernel_id: string | null;
  visible: boolean;
  input_age_seconds: number | null;
  /** Each is told of once. */
  warnings_seen?: IWarningSeen[];
}

/** A warning that stood on this page while it was visible and had the focus. */
export interface IWarningSeen {
  kernel_id: string;
  /** The warning's `at`. */
  given_at: string;
}

export type StreamMessage =
  | { type: 'status'; status: IStatus }
  | {
      type: 'change';
      kernels: IKernel[];
      removed: string[];
      gpus: IGpu[];
      telemetry: ITelemetry;
      server_time: string;
    }
  | { type: 'warning'; kernel_id: string; warning: IWarning; kernel: IKernel }
  | ({ type: 'save_request' } & ISaveRequest)
  | { type: 'culled'; kernel_id: string; tombstone_url: string }
  | { type: 'save_failed' | 'cull_failed'; kernel_id: string; reason: IReason }
  | { type: 'beat'; server_time: string };
