// Writes pairs of answers as tokens: for each answer the whole document, and the number of tokens
// that its prompt takes.

import { UsageError } from '../errors.js';
import type { DataSource } from './data-source.js';
import { COUNTED, encodeFields, parseLine } from './document.js';
import { eachEntry, hasNone } from './each-entry.js';
import { readPreference } from './preference-shapes.js';
import { type ExampleIndex, ROLES } from './token-file.js';
import type { WritingTools } from './writing-tools.js';

/** Writes each pair as two texts, with the lengths of their prompts as labels. */
export async function writePairs(
  source: DataSource,
  { tokenizer, writer, onTokenized }: WritingTools,
): Promise<ExampleIndex> {
  let count = 0;
  await eachEntry(source, { onTokenized }, async ({ text, number }) => {
    const { chosen, rejected } = readPreference(parseLine(text));
    for (const [document, role] of [
      [chosen, ROLES.first],
      [rejected, ROLES.second],
    ] as const) {
      const [tokens, ...others] = encodeFields(document, tokenizer);
      if (others.length > 0) {
        throw new Error('A single answer made several documents.');
      }
      const promptLength = tokens!.findIndex((token) => token >= COUNTED);
      if (promptLength < 1) {
        throw new UsageError(
          `expected a prompt and an answer, got ${promptLength < 0 ? 'no token of an answer' : 'no token of a prompt'}. Fill both in, or leave the line out.`,
        );
      }
      await writer.part(
        tokens!.map((token) => token & ~COUNTED),
        role,
        number,
      );
      writer.label(count, promptLength);
    }
    count++;
  });
  if (count === 0) {
    throw hasNone(source, 'pairs');
  }
  return { count, kind: 'preferences', labels: [], frame: { begin: [], between: [], end: [] } };
}
