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

/** A state dict that does not fit: missing, unexpected or misshapen entries. */
export class FsdpStateDictError extends FsdpError {
  override readonly name = 'FsdpStateDictError' as const;
  readonly code = 'FSDP_STATE_DICT';
  readonly missing: readonly string[];
  readonly unexpected: readonly string[];
  readonly mismatched: readonly string[];

  constructor(
    message: string,
    entries: {
      readonly missing?: readonly string[];
      readonly unexpected?: readonly string[];
      readonly mismatched?: readonly string[];
    } = {},
  ) {
    super(message);
    this.missing = entries.missing ?? [];
    this.unexpected = entries.unexpected ?? [];
    this.mismatched = entries.mismatched ?? [];
  }
}
