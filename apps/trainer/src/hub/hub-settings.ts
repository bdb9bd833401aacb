// What the environment says about the Hub, in the variables that Hugging Face's own programs read.

import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { homeDirectory } from '../home-directory.js';

export interface HubSettings {
  /** The address of the Hub, without a slash at its end. */
  readonly endpoint: string;
  /** The directory of all repositories that were downloaded. */
  readonly cache: string;
  /** The access token of the user; undefined for nobody. */
  readonly token: string | undefined;
  /** Whether the Hub may not be asked, so that only the cache counts. */
  readonly isOffline: boolean;
}

const ENDPOINT = 'https://huggingface.co';
const TRUE = /^(1|true|yes|on)$/i;

/** The settings of the environment; the cache is the one of Hugging Face's Python library. */
export function hubSettings(env: NodeJS.ProcessEnv): HubSettings {
  const userCache = env.XDG_CACHE_HOME || join(homeDirectory() ?? '.', '.cache');
  const home = env.HF_HOME || join(userCache, 'huggingface');
  return {
    endpoint: (env.HF_ENDPOINT || ENDPOINT).replace(/\/+$/, ''),
    cache: env.HF_HUB_CACHE || env.HUGGINGFACE_HUB_CACHE || join(home, 'hub'),
    token: tokenOf(env, home),
    isOffline: TRUE.test(env.HF_HUB_OFFLINE ?? ''),
  };
}

/** The token of the environment, or the one that `hf auth login` left. */
function tokenOf(env: NodeJS.ProcessEnv, home: string): string | undefined {
  const given = env.HF_TOKEN || env.HUGGING_FACE_HUB_TOKEN;
  if (given) {
    return given.trim();
  }
  try {
    return readFileSync(env.HF_TOKEN_PATH || join(home, 'token'), 'utf8').trim() || undefined;
  } catch {
    return undefined;
  }
}
