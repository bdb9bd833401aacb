// The job's secret: an option, a variable, or a file, which is how Kubernetes mounts a Secret.

import { randomBytes } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { LaunchError } from '../errors.js';
import type { EnvVariables } from './launchers/environment.js';

/** The length that connectWs requires. */
const MIN_SECRET_LENGTH = 16;

const REMEDY =
  'Make one with "openssl rand -hex 32" and give the same to all ranks: by SHARDWEAVE_SECRET, by a file that SHARDWEAVE_SECRET_FILE names, or by the option secret.';

export interface SecretOptions {
  readonly secret?: string;
  readonly worldSize: number;
  readonly env: EnvVariables;
}

/**
 * The secret: the option, else SHARDWEAVE_SECRET, else the text of the file SHARDWEAVE_SECRET_FILE.
 * A world of one rank needs none, and gets a fresh one.
 * @throws {LaunchError} where there is no secret, one that is too short, or a file that can't be
 * read; no message contains the secret
 */
export async function readSecret({ secret, worldSize, env }: SecretOptions): Promise<string> {
  if (secret !== undefined) {
    return checkLength('secret', secret);
  }
  const { SHARDWEAVE_SECRET: text = '', SHARDWEAVE_SECRET_FILE: path = '' } = env;
  if (text !== '') {
    return checkLength('SHARDWEAVE_SECRET', text);
  }
  if (path === '' && worldSize === 1) {
    return randomBytes(32).toString('hex');
  }
  if (path === '') {
    throw new LaunchError('SHARDWEAVE_SECRET', undefined, {
      problem: 'expected the secret by which the ranks know each other',
      remedy: REMEDY,
    });
  }
  let content: string;
  try {
    content = await readFile(path, 'utf8');
  } catch (error) {
    const { code = 'unknown' } = error as NodeJS.ErrnoException;
    const problem = `expected a file that can be read (${code})`;
    throw new LaunchError('SHARDWEAVE_SECRET_FILE', path, { problem, remedy: REMEDY });
  }
  return checkLength('SHARDWEAVE_SECRET_FILE', content.trim());
}

function checkLength(variable: string, secret: string): string {
  if (secret.length < MIN_SECRET_LENGTH) {
    throw new LaunchError(variable, `${secret.length} characters`, {
      problem: `expected a secret of at least ${MIN_SECRET_LENGTH} characters`,
      remedy: REMEDY,
    });
  }
  return secret;
}
