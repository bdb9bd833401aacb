// Decides who may ask the dashboard. It listens on loopback, where any page in a browser and any
// user of the machine can connect: a page is recognized by the names in its request, and a user by
// the token.

import { timingSafeEqual } from 'node:crypto';

/**
 * Names of loopback. The port may differ from the dashboard's: that of a tunnel from another
 * machine.
 */
const LOOPBACK = /^(127\.0\.0\.1|localhost|\[::1\])(:\d{1,5})?$/;

export interface Refusal {
  readonly status: 400 | 401 | 403 | 405;
  readonly reason: string;
}

/**
 * Why `request` is refused, or undefined. Where an attacker's DNS leads a name to loopback, Host
 * has that name. A page of another origin either names its origin in Origin, or can't send the
 * token.
 * @param token expected as `Authorization: Bearer`; undefined where the request asks for nothing
 * secret
 */
export function refusalOf(
  method: string,
  headers: ReadonlyMap<string, string>,
  token: string | undefined,
): Refusal | undefined {
  const [host = '', origin, authorization = ''] = ['host', 'origin', 'authorization'].map((name) =>
    headers.get(name),
  );
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

/** Compares in a time that depends on nothing but the length. */
function isEqual(given: string, expected: string): boolean {
  const [a, b] = [Buffer.from(given), Buffer.from(expected)];
  return a.byteLength === b.byteLength && timingSafeEqual(a, b);
}
