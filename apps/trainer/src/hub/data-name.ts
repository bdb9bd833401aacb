// Data sets on the Hub, as people type them: hf:org/name[@revision][:config][:split].

import { UsageError } from '../errors.js';
import { type HubName, parseHubName } from './hub-name.js';

const PREFIX = 'hf:';

/** A split of a data set. */
export interface DataName extends HubName {
  /**
   * What follows the revision: a config and a split, or one of them, or nothing; an empty text
   * stands for the default.
   */
  readonly parts: readonly string[];
}

/** Whether data is on the Hub; anything else is a path. */
export function isDataName(given: string | undefined): given is string {
  return given?.startsWith(PREFIX) === true;
}

/** @throws {UsageError} for what begins with hf: and is no name */
export function parseDataName(given: string, flag: string): DataName {
  const [repo = '', ...words] = given.slice(PREFIX.length).split(':');
  const name = parseHubName(repo);
  const parts = words.at(-1) === '' && words.length > 2 ? words.slice(0, 2) : words;
  if (name === undefined || parts.length > 2) {
    throw new UsageError(
      `${flag}: expected hf:org/name[@revision][:config][:split], got "${given}". Copy the name from the data set's page, such as hf:HuggingFaceH4/no_robots:train.`,
    );
  }
  return { ...name, parts };
}

/** A name as it is typed. A split that is a number ends with a colon, or it would be a weight. */
export function dataNameText({ repo, revision, parts }: DataName): string {
  const at = revision === undefined ? '' : `@${revision}`;
  const isNumber = parts.length > 1 && Number.isFinite(Number(parts.at(-1) || Number.NaN));
  return [`${PREFIX}${repo}${at}`, ...parts, ...(isNumber ? [''] : [])].join(':');
}
