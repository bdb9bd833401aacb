// Types of hash-table.mjs, which is plain JavaScript since Node 20 runs it as it is.
import type { Outcome } from './program/run-order.ts';

export type Hashes = Readonly<Record<string, Readonly<Record<string, string>>>>;

export class HashTable {
  readonly hashes: Hashes;
  readonly faults: readonly string[];
  readonly programs: readonly string[];
  constructor(expected: Hashes);
  add(engine: string, outcomes: readonly Outcome[]): readonly string[];
}
