// What an earlier push has left in a repository, and this one has nothing for.

import type { PushTarget } from '../hub/hub-push.js';
import type { MadePush } from './make-push.js';

/** The files of a repository that a push has no others for. */
export interface StaleFiles {
  /** Those that go in its commit, such as the third of three shards. */
  readonly removed: readonly string[];
  /** GGUF files of which nobody can tell whether a push has brought them. */
  readonly left: readonly string[];
}

const GGUF = '.gguf';

/** Which files of a repository the push makes stale. */
export function staleFiles(
  target: Pick<PushTarget, 'files'> | undefined,
  { files, isOurs }: Pick<MadePush, 'files' | 'isOurs'>,
): StaleFiles {
  const pushed = new Set(files.map(({ path }) => path));
  const others = (target?.files ?? []).filter((name) => !pushed.has(name));
  // The command gguf writes a Modelfile beside each GGUF, and both were made of other weights.
  const stemOf = (name: string) => name.replace(/\.(gguf|Modelfile)$/, '');
  const isPair = (name: string) =>
    [GGUF, '.Modelfile'].every((end) => others.includes(stemOf(name) + end));
  const removed = others.filter((name) => isOurs(name) || isPair(name));
  const left = others.filter((name) => name.endsWith(GGUF) && !removed.includes(name));
  return { removed, left };
}
