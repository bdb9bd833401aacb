// Typed errors of tensor-core. `code` is stable and is what callers branch on; messages read
// `op: expected X, got Y (context). Hint.`. The codes are a table in the package's README.

import { CodedError } from '@shardweave/dtypes/messages';

/** The stable codes of this package's errors, one for each class, on which callers branch. */
export type TensorErrorCode =
  | 'SHAPE'
  | 'DTYPE'
  | 'LIMIT'
  | 'DISPOSED'
  | 'DEVICE_LOST'
  | 'OUT_OF_MEMORY'
  | 'SHADER'
  | 'GRAPH'
  | 'STATE'
  | 'OPTION';

/** The options of every error of this package. */
export interface TensorErrorOptions {
  /** The error that led to this one. */
  readonly cause?: unknown;
}

/** The base class of all errors that tensor-core throws or rejects with on purpose. */
export abstract class TensorError extends CodedError {
  abstract override readonly code: TensorErrorCode;
}

/** Shapes, sizes, strides or axes that don't fit together: the caller's mistake. */
export class ShapeError extends TensorError {
  readonly code = 'SHAPE';
}

/** A dtype that the op does not take. */
export class DTypeError extends TensorError {
  readonly code = 'DTYPE';
}

/** An option that does not exist, or a value of a wrong kind: the caller's mistake. */
export class OptionError extends TensorError {
  readonly code = 'OPTION';
}

/** More than the device can hold or bind at once. */
export class LimitError extends TensorError {
  readonly code = 'LIMIT';
  /** The bytes that were asked for and those that are allowed, where they are known. */
  readonly requestedBytes: number | undefined;
  readonly limitBytes: number | undefined;

  constructor(
    message: string,
    options: TensorErrorOptions & {
      readonly requestedBytes?: number;
      readonly limitBytes?: number;
    } = {},
  ) {
    super(message, options);
    this.requestedBytes = options.requestedBytes;
    this.limitBytes = options.limitBytes;
  }
}

/**
 * Checks that one buffer can hold so many bytes, before they are asked of the device. `label` tells
 * what the bytes are for, as the message shows it.
 * @throws {LimitError} where the device's buffers are smaller
 */
export function requireBufferSize(
  requestedBytes: number,
  { limitBytes, label }: { readonly limitBytes: number; readonly label: string },
): void {
  if (requestedBytes > limitBytes) {
    throw new LimitError(
      `alloc: expected at most ${limitBytes} bytes, got ${requestedBytes} (${label}). A tensor lies in one buffer of the device, and a packed or sharded group of parameters too: shard over more ranks, make units or batches smaller, or compute in 16 bits.`,
      { requestedBytes, limitBytes },
    );
  }
}

/** A use of a tensor, storage, buffer or device after it was freed. */
export class DisposedError extends TensorError {
  readonly code = 'DISPOSED';
}

/** The device is gone (driver reset, unplugged, worker died); nothing on it can be read again. */
export class DeviceLostError extends TensorError {
  readonly code = 'DEVICE_LOST';
  /** The reason that the driver gave, such as 'destroyed' or 'unknown'. */
  readonly reason: string | undefined;

  constructor(message: string, options: TensorErrorOptions & { readonly reason?: string } = {}) {
    super(message, options);
    this.reason = options.reason;
  }
}

/** The bytes around a failed allocation, each where it is known. */
export interface MemoryBytesAtFailure {
  readonly requestedBytes?: number;
  /** The bytes in use when it failed. */
  readonly liveBytes?: number;
  /** The bytes in use and kept for reuse, after everything that could be was given back. */
  readonly reservedBytes?: number;
  readonly limitBytes?: number | undefined;
}

/**
 * The device had no memory left for an allocation within its limits. It fails the call that asked,
 * or the next one that waits; the device is usable afterwards.
 */
export class OutOfMemoryError extends TensorError {
  readonly code = 'OUT_OF_MEMORY';
  readonly requestedBytes: number | undefined;
  readonly liveBytes: number | undefined;
  readonly reservedBytes: number | undefined;
  readonly limitBytes: number | undefined;

  constructor(message: string, options: TensorErrorOptions & MemoryBytesAtFailure = {}) {
    super(message, options);
    this.requestedBytes = options.requestedBytes;
    this.liveBytes = options.liveBytes;
    this.reservedBytes = options.reservedBytes;
    this.limitBytes = options.limitBytes;
  }
}

/** A message of a shader compiler. Line and column count from 1 and are 0 where unknown. */
export interface ShaderMessage {
  readonly severity: 'error' | 'warning' | 'info';
  readonly message: string;
  readonly line: number;
  readonly column: number;
}

/**
 * A kernel that failed to compile, by a fault of ours or of the driver. The message lists all
 * messages of the compiler and the source.
 */
export class ShaderError extends TensorError {
  readonly code = 'SHADER';
  readonly label: string;
  readonly messages: readonly ShaderMessage[];
  readonly source: string;

  constructor(
    label: string,
    messages: readonly ShaderMessage[],
    source: string,
    options: TensorErrorOptions = {},
  ) {
    super(shaderText(label, messages, source), options);
    this.label = label;
    this.messages = messages;
    this.source = source;
  }
}

/** A misuse of the autograd graph, which was freed or never recorded. */
export class GraphError extends TensorError {
  readonly code = 'GRAPH';
}

/** A call that is not valid now: it ends scopes out of order, say, or rebinds a non-leaf. */
export class StateError extends TensorError {
  readonly code = 'STATE';
}

function shaderText(label: string, messages: readonly ShaderMessage[], source: string): string {
  const listed = messages.map(
    (message) => `  ${message.line}:${message.column} ${message.severity}: ${message.message}`,
  );
  const numbered = source.split('\n').map((line, i) => `${String(i + 1).padStart(4)} | ${line}`);
  return [`shader ${label}: it did not compile.`, ...listed, ...numbered].join('\n');
}
