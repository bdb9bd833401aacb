// What ranks compare of the collectives of one public call.

import type { ExchangeCall } from '@shardweave/collectives';

/** What callIdentity made. */
const CALL = /'(\w+)\(\)/;

/** How a public call's exchanges of texts are called. */
export function exchangeCall(operation: string, what?: string): ExchangeCall {
  return { tag: what ?? operation, identity: callIdentity(operation, what) };
}

export function callIdentity(operation: string, what?: string): string {
  return what === undefined ? `${operation}()` : `${operation}() of ${what}`;
}

/** The operation that the text of a collective names; undefined where it is of no public call. */
export function calledIn(call: string): string | undefined {
  return CALL.exec(call)?.[1];
}
