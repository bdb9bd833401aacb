// What can go wrong with a sharded module.

import { CodedError } from '@shardweave/dtypes/messages';

/** Base of this package's errors; `code` is stable. */
export abstract class FsdpError extends CodedError {}

/**
 * An option or a wrapped module that cannot work. It is found when the instance is constructed, or,
 * where it takes all ranks to see it, at the first collective call.
 */
export class FsdpConfigError extends FsdpError {
  override readonly name = 'FsdpConfigError' as const;
  readonly code = 'FSDP_CONFIG';
}

/**
 * A call that the module's present state does not allow, such as a forward inside summonFullParams.
 */
export class FsdpStateError extends FsdpError {
  override readonly name = 'FsdpStateError' as const;
  readonly code = 'FSDP_STATE';
}

/**
 * The ranks did not do the same: they used different parameters in a step, ran modules in different
 * orders, or made different calls.
 */
export class FsdpRanksDifferError extends FsdpError {
  override readonly name = 'FsdpRanksDifferError' as const;
  readonly code = 'FSDP_RANKS_DIFFER';
  /**
   * The parameters that get a gradient on some ranks and not on others, as unit and path; empty
   * where that is not known.
   */
  readonly parameters: readonly string[];

  constructor(
    message: string,
    options: { readonly parameters: readonly string[]; readonly cause: unknown },
  ) {
    super(message, { cause: options.cause });
    this.parameters = options.parameters;
  }
}
