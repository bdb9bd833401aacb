// The identity that ranks compare for the collectives of one public call.

import type { ExchangeCall } from '@shardweave/collectives';

/** Matches the text that callIdentity makes. */
const CALL = /'(\w+)\(\)/;

/** The tag and identity of an exchange of texts within a public call. */
export function exchangeCall(operation: string, what?: string): ExchangeCall {
  return { tag: what ?? operation, identity: callIdentity(operation, what) };
}

export function callIdentity(operation: string, what?: string): string {
  return what === undefined ? `${operation}()` : `${operation}() of ${what}`;
}

/** The public call that a collective's text names; undefined where it belongs to none. */
export function calledIn(call: string): string | undefined {
  return CALL.exec(call)?.[1];
}
