// What a rank called: the fields on which all ranks of a collective must agree. They travel with
// every message, so that ranks that disagree can tell what each one called.

import type { ReduceDType, ReduceOp, WireFormat } from '@shardweave/dtypes';

/** The element types on the wire. */
export type WireDType = ReduceDType;

export const WIRE_DTYPES: readonly WireDType[] = ['f32', 'f16', 'bf16', 'i32', 'u32', 'u8'];

/** The element type that ranks compare, including how f32 travels where it is compressed. */
export type CallDType = WireDType | `f32 as ${WireFormat}`;

/** All of these, in the order of their codes on the wire. */
export const CALL_DTYPES: readonly CallDType[] = [
  ...WIRE_DTYPES,
  'f32 as f16',
  'f32 as bf16',
  'f32 as int8',
];

/** The names of the calls of a group, as traces, errors and signatures have them. */
export type OperationName =
  | 'allGather'
  | 'reduceScatter'
  | 'allReduce'
  | 'broadcast'
  | 'gather'
  | 'send'
  | 'recv'
  | 'barrier'
  | 'split';

/**
 * What one rank called: all fields on which the ranks of a call must agree. It travels with every
 * message; ranks whose signatures differ reject with CollectiveMismatchError, which lists them.
 */
export interface CallSignature {
  readonly operation: OperationName;
  readonly dtype: CallDType;
  /** The reduction; null where nothing is added up. */
  readonly reduceOp: ReduceOp | null;
  /**
   * The bytes of the part that one rank contributes or owns; in allReduce, and where counts are
   * uneven, the bytes of the whole buffer.
   */
  readonly byteLength: number;
  /** The group rank of the root; -1 where there is none. */
  readonly root: number;
  /**
   * A 32-bit hash of uneven counts, shared hosts, the tree and the identity; 0 where there are none
   * of them.
   */
  readonly layout: number;
}

/** Whether two ranks made the same call. */
export function isSameCall(a: CallSignature, b: CallSignature): boolean {
  return (
    a.operation === b.operation &&
    a.dtype === b.dtype &&
    a.reduceOp === b.reduceOp &&
    a.byteLength === b.byteLength &&
    a.root === b.root &&
    a.layout === b.layout
  );
}

/** A list of more numbers than this makes a message hard to read. */
const MAX_LISTED = 16;

/** The details that `CallSignature.layout` is a hash of, where they are known. */
export interface LayoutDetails {
  readonly counts?: readonly number[] | undefined;
  readonly hosts?: readonly number[] | undefined;
  /** The numbers of a tree: its leaves, the first one of the call, and those of each rank. */
  readonly tree?: readonly number[] | undefined;
  /** See CallOptions. */
  readonly identity?: string | undefined;
}

/**
 * Describes a call for messages, for example `allReduce sum f32 1024 bytes #41` or
 * `broadcast u8 16 bytes root 2 #3`.
 */
export function describeCall(
  call: CallSignature,
  sequence: number,
  { counts, hosts, tree, identity }: LayoutDetails = {},
): string {
  const words: (string | number)[] = [call.operation];
  if (call.reduceOp !== null) {
    words.push(call.reduceOp);
  }
  if (call.operation !== 'barrier') {
    words.push(call.dtype, call.byteLength, 'bytes');
  }
  if (call.layout !== 0) {
    const known = Object.entries({ counts, hosts, tree }).filter(
      ([, list]) => list !== undefined && list.length <= MAX_LISTED,
    );
    const details = known.map(([name, list]) => `${name} [${list}]`);
    if (identity !== undefined) {
      details.push(`'${identity}'`);
    }
    words.push(...(details.length > 0 ? details : [hex(call.layout)]));
  }
  if (call.root >= 0) {
    words.push('root', call.root);
  }
  words.push(isPointToPoint(call) ? `channel ${sequence}` : `#${sequence}`);
  return words.join(' ');
}

/**
 * Whether the call is a send or recv, which are numbered by channel, not by the group's sequence.
 */
export function isPointToPoint(call: CallSignature): boolean {
  return call.operation === 'send' || call.operation === 'recv';
}

function hex(layout: number): string {
  return `layout 0x${layout.toString(16)}`;
}
