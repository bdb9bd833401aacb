// Where rows of a run are in its data, as people look for them: by file and line.

import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { fileFormat, placeIn } from '../data/data-file.js';
import { type DataPart, dataParts, filesOf } from '../data/data-parts.js';
import { DataSource } from '../data/data-source.js';
import type { RowOrigin } from '../data/rows.js';
import { TOKEN_FILES, type TokenIndex } from '../data/token-file.js';
import { UsageError } from '../errors.js';
import type { PreparedRun, TokenPart } from '../run-config.js';

const FLAG = '--data';

/**
 * The places of each row, such as `rows.jsonl, line 3`, for each of its documents; of a text its
 * first token. Lines are those of the data that the tokens were made of.
 * @param config the run, with the data as it is named now
 * @param tokens the tokens that were found for it
 */
export async function rowPlaces(
  origins: readonly RowOrigin[],
  { data, model, head }: Pick<PreparedRun, 'data' | 'model' | 'head'>,
  tokens: readonly TokenPart[],
): Promise<readonly (readonly string[])[]> {
  if (origins.every(({ unit }) => unit === 'row')) {
    const module = model.kind === 'preset' ? model.name : model.path;
    return origins.map(({ numbers }) => numbers.map((number) => `${module}, row ${number}`));
  }
  const isOfExamples = head.kind !== 'lm' && head.kind !== 'module';
  const parts = dataParts(data, FLAG);
  const named = await Promise.all(
    parts.map(async (part, i) => {
      const own = origins.filter((origin) => origin.part === i);
      const index = await indexOf(tokens[i]!);
      const name = part.name ?? 'the novel';
      if (index.kind === 'stream') {
        return (number: number) => `${name}, token ${number} of ${index.tokens}`;
      }
      const wanted = new Set(own.flatMap(({ numbers }) => numbers));
      const found = await documentPlaces(part, { wanted, index, isOfExamples });
      const isOne = (index.origin.files ?? 1) === 1;
      return (number: number) =>
        found.get(number) ??
        (isOne
          ? placeIn(name, fileFormat(part.name), number)
          : `${name}, line ${number} of all its files`);
    }),
  );
  return origins.map(({ part, numbers }) => numbers.map((number) => named[part]!(number)));
}

async function indexOf({ directory }: TokenPart): Promise<TokenIndex> {
  return JSON.parse(await readFile(join(directory, TOKEN_FILES.index), 'utf8')) as TokenIndex;
}

/**
 * The places of documents by their numbers, which go on from one file to the next. There are none
 * where several files are not what they were, for then nothing says which file had which.
 */
async function documentPlaces(
  part: DataPart,
  options: {
    readonly wanted: ReadonlySet<number>;
    readonly index: TokenIndex;
    readonly isOfExamples: boolean;
  },
): Promise<ReadonlyMap<number, string>> {
  const { wanted, index, isOfExamples } = options;
  try {
    const [file, ...others] = filesOf(part, FLAG);
    if (file !== undefined && others.length === 0) {
      const format = fileFormat(file);
      return new Map([...wanted].map((number) => [number, placeIn(file, format, number)]));
    }
    const source = await DataSource.open(part, FLAG, { isOfExamples });
    const found = new Map<number, string>();
    for await (const entry of source.entries()) {
      if (wanted.has(entry.number)) {
        found.set(entry.number, entry.place);
      }
    }
    return source.digest() === index.origin.sha256 ? found : new Map();
  } catch (error) {
    if (error instanceof UsageError) {
      return new Map();
    }
    throw error;
  }
}
