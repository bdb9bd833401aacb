// Models on the Hub, as people type them: [hf:]org/name[@revision][:file].

import { type HubName, parseHubName } from './hub-name.js';

const PREFIX = 'hf:';
/** With the prefix, which no path has, a GGUF file may follow behind a slash. */
const WITH_FILE = /^([^/:@]+\/[^/:@]+)\/([^:@]+\.gguf)$/;

/** A model, and where its repository has GGUF files, which of them. */
export interface ModelName extends HubName {
  /**
   * A type of llama.cpp such as Q4_K_M, or the path of a file in the repository; undefined for
   * what the repository has.
   */
  readonly file?: string | undefined;
}

/** Whether a text can't be a path, and has to be a name. */
export function isModelName(given: string): boolean {
  return given.startsWith(PREFIX);
}

/** The name that `given` is; undefined for what can only be a path, and for what is no name. */
export function parseModelName(given: string): ModelName | undefined {
  const text = isModelName(given) ? given.slice(PREFIX.length) : given;
  const [, inRepo, behindSlash] = (isModelName(given) && WITH_FILE.exec(text)) || [];
  const [repo = '', file, ...more] = inRepo === undefined ? text.split(':') : [inRepo, behindSlash];
  const name = parseHubName(repo);
  const isOther = name === undefined || file === '' || more.length > 0;
  return isOther ? undefined : { ...name, file };
}

/** A name as it may be typed. */
export function modelNameText({ repo, revision, file }: ModelName): string {
  const at = revision === undefined ? '' : `@${revision}`;
  return `${repo}${at}${file === undefined ? '' : `:${file}`}`;
}
