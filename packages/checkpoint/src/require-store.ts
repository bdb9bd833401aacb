// Checks that what a program gives as the place of a save is one, for plain JavaScript gives paths.

import { CheckpointUsageError } from './errors.js';

const READER = ['byteLength', 'read'];
const STORE = [...READER, 'files', 'create', 'replace', 'delete', 'lock'];

/** @throws {CheckpointUsageError} for what is no PieceReader, such as a path */
export function requireReader(reader: unknown): void {
  requireMethods('load', reader, { what: 'a PieceReader', methods: READER });
}

/** @throws {CheckpointUsageError} for what is no PieceStore, such as a path */
export function requireStore(store: unknown): void {
  requireMethods('save', store, { what: 'a PieceStore', methods: STORE });
}

function requireMethods(
  call: string,
  value: unknown,
  { what, methods }: { readonly what: string; readonly methods: readonly string[] },
): void {
  const has = (name: string) =>
    typeof value === 'object' && value !== null && typeof Reflect.get(value, name) === 'function';
  if (methods.every(has)) {
    return;
  }
  const hint = has('commit')
    ? 'Write piecesIn(store) for a ShardStore.'
    : 'Write pieceDirectory(path) of @shardweave/checkpoint/node for a directory.';
  throw new CheckpointUsageError(`${call}: expected ${what}, got ${shown(value)}. ${hint}`);
}

function shown(value: unknown): string {
  if (value instanceof Promise) {
    return 'a promise';
  }
  if (typeof value === 'object' && value !== null) {
    return `an object of ${value.constructor?.name || 'no class'}`;
  }
  return typeof value === 'string' ? JSON.stringify(value) : String(value);
}
