// The token that lets somebody see the dashboard.

import { randomBytes } from 'node:crypto';
import { UsageError } from '../errors.js';

/**
 * The variable that sets the token, for Prometheus and for runs whose output nobody reads.
 * Otherwise the token is made anew each time.
 */
export const TOKEN_VARIABLE = 'SHARDWEAVE_DASHBOARD_TOKEN';
/** The length of 128 bits in base64, which nobody can guess. */
const LEAST_CHARS = 22;

/** @throws {UsageError} for a token that is too short, or that a URL's fragment would change */
export function tokenOf(env: NodeJS.ProcessEnv): string {
  const token = env[TOKEN_VARIABLE] || randomBytes(24).toString('base64url');
  if (token.length < LEAST_CHARS || /[^\w.~-]/.test(token)) {
    throw new UsageError(
      `${TOKEN_VARIABLE}: expected at least ${LEAST_CHARS} letters, digits or . _ ~ -, got ${token.length} characters. Make one with "openssl rand -hex 16".`,
    );
  }
  return token;
}
