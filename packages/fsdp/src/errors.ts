// What can go wrong with a sharded module.

/** Base of this package's errors; `code` is stable. */
export abstract class FsdpError extends Error {
  abstract readonly code: string;
}

/** An option or a wrapped module that cannot work; found at construction. */
export class FsdpConfigError extends FsdpError {
  override readonly name = 'FsdpConfigError' as const;
  readonly code = 'FSDP_CONFIG';
}

/** A call that the module's state does not allow, for instance a forward inside summon. */
export class FsdpStateError extends FsdpError {
  override readonly name = 'FsdpStateError' as const;
  readonly code = 'FSDP_STATE';
}

/**
 * Ranks used different parameters in a step, modules in different orders, or made different calls.
 */
export class FsdpRanksDifferError extends FsdpError {
  override readonly name = 'FsdpRanksDifferError' as const;
  readonly code = 'FSDP_RANKS_DIFFER';
  /** Those that some ranks have gradients for and others don't, by unit and path, where known. */
  readonly parameters: readonly string[];

  constructor(
    message: string,
    options: { readonly parameters: readonly string[]; readonly cause: unknown },
  ) {
    super(message, { cause: options.cause });
    this.parameters = options.parameters;
  }
}

/**
 * Another rank failed, so this one cannot go on. After a step the process groups have ended; after
 * a save, a load or a state dict they go on.
 */
export class FsdpRankFailedError extends FsdpError {
  override readonly name = 'FsdpRankFailedError' as const;
  readonly code = 'FSDP_RANK_FAILED';
  /**
   * Rank that failed, in which call, and why: its error's text, of a step with the error's code or
   * name before it.
   */
  readonly rank: number;
  readonly operation: string;
  readonly reason: string;

  constructor(
    message: string,
    failure: {
      readonly rank: number;
      readonly operation: string;
      readonly reason: string;
      readonly cause?: unknown;
    },
  ) {
    super(message, 'cause' in failure ? { cause: failure.cause } : undefined);
    this.rank = failure.rank;
    this.operation = failure.operation;
    this.reason = failure.reason;
  }
}
