// Typed errors of offload. `code` is stable and is what callers branch on; the README has the
// table.

import { CodedError } from '@shardweave/dtypes/messages';

/** What tells the errors of this package apart. */
export type OffloadErrorCode = 'OFFLOAD_CONFIG' | 'OFFLOAD_BUDGET' | 'OFFLOAD_BUSY';

/** Base of all errors that offload throws or rejects with on purpose. */
export abstract class OffloadError extends CodedError {
  abstract override readonly code: OffloadErrorCode;
}

/** Options or inputs that cannot work: the caller's mistake. */
export class OffloadConfigError extends OffloadError {
  readonly code = 'OFFLOAD_CONFIG';
}

/** No number of slices fits the device's budget. */
export class OffloadBudgetError extends OffloadError {
  readonly code = 'OFFLOAD_BUDGET';
  readonly budgetBytes: number;
  /** The smallest budget that works with these inputs. */
  readonly requiredBytes: number;
  /** The module that needs it, by its index or name in the model. */
  readonly moduleName: string;

  constructor(
    message: string,
    options: {
      readonly budgetBytes: number;
      readonly requiredBytes: number;
      readonly moduleName: string;
    },
  ) {
    super(message);
    this.budgetBytes = options.budgetBytes;
    this.requiredBytes = options.requiredBytes;
    this.moduleName = options.moduleName;
  }
}

/** A call while another call, a backward or a step has not ended. What was running goes on. */
export class OffloadBusyError extends OffloadError {
  readonly code = 'OFFLOAD_BUSY';
  /** What was running: forward, backward, step, stateDict and so on. */
  readonly running: string;

  constructor(call: string, running: string) {
    super(
      `${call}: expected one call of the OffloadModel at a time, got one while its ${running} runs. Await the earlier call first.`,
    );
    this.running = running;
  }
}
