// What lets somebody see the dashboard.

import { randomBytes } from 'node:crypto';
import { UsageError } from '../errors.js';

/**
 * Names the token, for Prometheus and for runs whose output nobody reads; else it is made anew each
 * time.
 */
export const TOKEN_VARIABLE = 'SHARDWEAVE_DASHBOARD_TOKEN';
/** As long as 128 bits are in base64: nobody guesses that. */
const LEAST_CHARS = 22;

/** @throws {UsageError} for a token that is short, or that a URL's fragment would change */
export function tokenOf(env: NodeJS.ProcessEnv): string {
  const token = env[TOKEN_VARIABLE] || randomBytes(24).toString('base64url');
  if (token.length < LEAST_CHARS || /[^\w.~-]/.test(token)) {
    throw new UsageError(
      `${TOKEN_VARIABLE}: expected at least ${LEAST_CHARS} letters, digits or . _ ~ -, got ${token.length} characters. Make one with "openssl rand -hex 16".`,
    );
  }
  return token;
}
