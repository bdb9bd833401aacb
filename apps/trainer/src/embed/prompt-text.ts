// What --prompt puts before each text: one of the model's prompts by its name, or a text.

import { UsageError } from '../errors.js';
import { nearest } from '../nearest.js';
import type { EmbedHead } from '../task/task-head.js';

/** A name as models give them to prompts; what has a space or a colon in it is a text. */
const NAME = /^[\w-]+$/;

/**
 * The text that is put before each text; empty where nothing is.
 * @throws {UsageError} for a word that none of the model's prompts has as its name
 */
export function promptText(
  given: string | undefined,
  { prompts = {} }: Pick<EmbedHead, 'prompts'>,
): string {
  if (given === undefined) {
    return '';
  }
  if (Object.hasOwn(prompts, given)) {
    return prompts[given]!;
  }
  if (!NAME.test(given)) {
    return given;
  }
  const names = Object.keys(prompts);
  const meant = nearest(given, names);
  const known =
    names.length === 0 ? "the model's files have no prompts" : `the model has ${names.join(', ')}`;
  const hint = meant === undefined ? '' : ` Did you mean ${meant}?`;
  throw new UsageError(
    `--prompt: expected the name of a prompt, got "${given}", and ${known}.${hint} To put that word itself before each text, end it with a space or a colon.`,
  );
}
