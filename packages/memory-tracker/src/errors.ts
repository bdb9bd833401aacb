// Typed errors of memory-tracker. `code` is stable; the codes are a table in the README.

import { CodedError } from '@shardweave/dtypes/messages';

/** Base of all errors that this package throws on purpose. */
export abstract class MemoryTrackerError extends CodedError {
  abstract override readonly code: 'MEMORY_TRACKER_CONFIG' | 'TRACE_FORMAT';
}

/** Options or arguments that cannot work: the caller's mistake. */
export class MemoryTrackerConfigError extends MemoryTrackerError {
  override readonly name = 'MemoryTrackerConfigError' as const;
  readonly code = 'MEMORY_TRACKER_CONFIG';
}

/** A text that is no memory trace, or one of a version that this package does not read. */
export class TraceFormatError extends MemoryTrackerError {
  override readonly name = 'TraceFormatError' as const;
  readonly code = 'TRACE_FORMAT';
}
