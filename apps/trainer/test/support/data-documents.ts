// What tests of data files ask: the entries of a file, and the tokens that are made of them.

import { join } from 'node:path';
import { newFolder } from '../../../../tooling/test-kit/folders.ts';
import { dataParts } from '../../src/data/data-parts.js';
import { DataSource, type SourceEntry } from '../../src/data/data-source.js';
import { neededFields } from '../../src/data/line-shapes.js';
import { TokenFile } from '../../src/data/token-file.js';
import { tokenize } from '../../src/data/tokenize.js';
import { lettersDirectory } from './letters-tokenizer.js';

/** The entries of a file. */
export async function entriesOf(path: string): Promise<SourceEntry[]> {
  const source = await DataSource.open(path, '--data');
  const entries: SourceEntry[] = [];
  for await (const entry of source.entries(neededFields)) {
    entries.push(entry);
  }
  return entries;
}

/** The tokens of a file with the tokenizer of letters, and the rows that they are of. */
export async function tokensOf(file: string) {
  const part = join(newFolder(), 'tokens');
  const tokenizerDirectory = lettersDirectory({});
  const [data] = dataParts(file);
  const job = {
    flag: '--data',
    data: data!,
    tokenizer: 'model',
    tokenizerDirectory,
    part,
  } as const;
  await tokenize(job, () => {});
  const tokens = await TokenFile.open(part);
  const { index } = tokens;
  const all = await tokens.read(0, index.tokens);
  await tokens.close();
  return { all, lines: Array.from(all, (_, i) => i < index.documents && tokens.document(i).line) };
}
