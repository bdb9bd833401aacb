// Who may ask the dashboard. It listens on loopback, where any page that a browser shows and any
// user of the machine can knock: a page is known by the names in its request, and a user by the
// token.

import { timingSafeEqual } from 'node:crypto';
import type { IncomingMessage } from 'node:http';

/** Names of loopback. A port may be another than ours: that of a tunnel from another machine. */
const LOOPBACK = /^(127\.0\.0\.1|localhost|\[::1\])(:\d{1,5})?$/;

export interface Refusal {
  readonly status: 401 | 403 | 405;
  readonly reason: string;
}

/**
 * Why `request` gets nothing, or undefined. A name that an attacker's DNS leads to loopback stands
 * in Host; a page of another origin names that in Origin, or else can't send the token.
 * @param token expected as `Authorization: Bearer`; undefined: what is asked for is no secret
 */
export function refusalOf(
  { method, headers }: Pick<IncomingMessage, 'method' | 'headers'>,
  token: string | undefined,
): Refusal | undefined {
  const { host = '', origin, authorization = '' } = headers;
  if (!LOOPBACK.test(host)) {
    return { status: 403, reason: 'expected a loopback name in Host' };
  }
  if (origin !== undefined && origin !== `http://${host}`) {
    return { status: 403, reason: 'expected no other page to ask' };
  }
  if (method !== 'GET') {
    return { status: 405, reason: 'expected GET' };
  }
  if (token !== undefined && !isEqual(authorization, `Bearer ${token}`)) {
    return { status: 401, reason: 'expected Authorization: Bearer with the token of this run' };
  }
  return undefined;
}

/** In a time that tells nothing but the length. */
function isEqual(given: string, expected: string): boolean {
  const [a, b] = [Buffer.from(given), Buffer.from(expected)];
  return a.byteLength === b.byteLength && timingSafeEqual(a, b);
}
