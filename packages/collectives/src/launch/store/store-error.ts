// What the calls of a Store reject with.

export type StoreErrorCode =
  | 'STORE_TIMEOUT'
  | 'STORE_LOST'
  | 'STORE_STALE'
  | 'STORE_LIMIT'
  | 'STORE_USAGE'
  | 'STORE_JOIN'
  | 'STORE_CLOSED';

export interface StoreErrorDetails {
  /** Of a wait that took too long: the keys that nobody has set. */
  readonly keys?: readonly string[];
  /** Of a barrier that took too long: the ranks that did not come. */
  readonly ranks?: readonly number[];
}

export class StoreError extends Error implements StoreErrorDetails {
  readonly code: StoreErrorCode;
  readonly keys: readonly string[];
  readonly ranks: readonly number[];

  constructor(code: StoreErrorCode, message: string, details: StoreErrorDetails = {}) {
    super(message);
    this.name = new.target.name;
    this.code = code;
    this.keys = details.keys ?? [];
    this.ranks = details.ranks ?? [];
  }
}
