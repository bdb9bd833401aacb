// What can go wrong with data-parallel training, apart from the errors of collectives.

import { CodedError } from '@shardweave/dtypes/messages';

/** The base of this package's errors, whose `code` is stable. */
export abstract class DdpError extends CodedError {}

/** An option or a wrapped module that cannot work; found at construction. */
export class DdpConfigError extends DdpError {
  override readonly name = 'DdpConfigError' as const;
  readonly code = 'DDP_CONFIG';
}

/** A call that the wrapper's present state does not allow, such as a backward without a forward. */
export class DdpStateError extends DdpError {
  override readonly name = 'DdpStateError' as const;
  readonly code = 'DDP_STATE';
}

/** The ranks hold different parameters, or train different ones. Thrown on all ranks. */
export class DdpStructureError extends DdpError {
  override readonly name = 'DdpStructureError' as const;
  readonly code = 'DDP_STRUCTURE';
}

/** A backward did not reach parameters that the ranks wait for. */
export class DdpUnusedParameterError extends DdpError {
  override readonly name = 'DdpUnusedParameterError' as const;
  readonly code = 'DDP_UNUSED_PARAMETERS';
  /** The paths of the parameters. */
  readonly parameters: readonly string[];

  constructor(message: string, parameters: readonly string[]) {
    super(message);
    this.parameters = parameters;
  }
}
