// The names of repositories on the Hugging Face Hub, as people type them: org/name[@revision].

/** What a repository holds. */
export type RepoKind = 'model' | 'dataset';

/** A repository, and the branch, tag or commit that is asked for. */
export interface HubName {
  /** `org/name`. */
  readonly repo: string;
  /** Undefined for the newest commit of the main branch. */
  readonly revision: string | undefined;
}

/** The part before the slash and the part behind it may each have 96 of these characters. */
const NAME = /^([\w-][\w.-]{0,95}\/[\w-][\w.-]{0,95})(?:@([\w./-]+))?$/;
/** Files that a model may be, and ways up: never names. */
const FILE = /\.(gguf|mjs)$|\.\./;
const COMMIT = /^[0-9a-f]{40}$/;

/**
 * The name that `given` is on the Hub; undefined for what can only be a path, as all that begins
 * with a dot or a slash.
 */
export function parseHubName(given: string): HubName | undefined {
  const found = FILE.test(given) ? null : NAME.exec(given);
  return found === null ? undefined : { repo: found[1]!, revision: found[2] };
}

/** Whether a revision is a whole commit, which never means anything else later. */
export function isCommit(revision: string | undefined): revision is string {
  return revision !== undefined && COMMIT.test(revision);
}

/** A snapshot in any cache, or a GGUF file of one, which may be no more than its header. */
const SNAPSHOT =
  /models--([\w.-]+?)--([\w.-]+)[/\\](snapshots|\.heads)[/\\]([0-9a-f]{40})(?:[/\\](.+\.gguf))?$/;

/**
 * The name of a model by its directory or its file in a cache, `org/name@commit` or
 * `org/name@commit:file.gguf`; undefined elsewhere.
 */
export function hubNameOf(path: string): string | undefined {
  const [, org, name, , commit, file] = SNAPSHOT.exec(path) ?? [];
  const rest = file === undefined ? '' : `:${file.replaceAll('\\', '/')}`;
  return commit === undefined ? undefined : `${org}/${name}@${commit}${rest}`;
}

/** Whether a file of a cache holds no more than the header of a GGUF file. */
export function isHead(path: string): boolean {
  return SNAPSHOT.exec(path)?.[3] === '.heads';
}
