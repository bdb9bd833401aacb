// The files of a push: what the run left of a model or of adapters, GGUF files of it, its losses as
// a picture, and its configuration. What lies beside them in its directories stays there.

import { createHash } from 'node:crypto';
import { createReadStream, existsSync, readdirSync, statSync } from 'node:fs';
import { open, readFile } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { isWeightsFile } from '@shardweave/nn';
import { TOKENIZER_FILES } from '../data/hub-tokenizer.js';
import { UsageError } from '../errors.js';
import { RUN_FILES } from '../files/run-files.js';
import { poolingFile, SENTENCE_FILES } from '../files/sentence-files.js';
import type { PushFile } from '../hub/hub-push.js';
import { ADAPTER_FILES, CLASSES_FILE } from '../model/adapter-directory.js';
import { lossChart } from '../output/loss-chart.js';
import { type PublicConfig, publicModelfile, withoutPaths } from './public-text.js';
import type { PushedRun } from './pushed-run.js';

const CONFIG_FILE = 'config.json';
const KEPT: ReadonlySet<string> = new Set([CONFIG_FILE, ...TOKENIZER_FILES, ...SENTENCE_FILES]);
const KEPT_OF_ADAPTERS: readonly string[] = [...Object.values(ADAPTER_FILES), CLASSES_FILE];
/** The tokenizer has no paths, and is the one text that is large. */
const UNREAD = 'tokenizer.json';
/** The points of a picture, which is 700 pixels wide. */
const CHART_POINTS = 1000;
const GGUF = '.gguf';

/** Whether a push of a kind writes the file of that name, and removes it where it has none. */
export function isResultFile(name: string, kind: PushedRun['kind']): boolean {
  return kind === 'adapter'
    ? KEPT_OF_ADAPTERS.includes(name)
    : KEPT.has(name) || isWeightsFile(name);
}

/**
 * The files of the run and the GGUF files in `ggufs`, each by its name.
 * @throws {UsageError} for a --gguf that is none
 */
export async function pushedFiles(
  run: PushedRun,
  { ggufs, config }: { readonly ggufs: readonly string[]; readonly config: PublicConfig },
): Promise<PushFile[]> {
  const names = readdirSync(run.path).filter((name) => isResultFile(name, run.kind));
  // The one file of a result that has a folder, which an embedder's own files name.
  const pooling = run.kind === 'model' ? (poolingFile(run.path) ?? []) : [];
  const results = [names, pooling].flat().map((name) => resultFile(run.path, name));
  const inRun = readdirSync(run.directory).filter((name) => name.endsWith(GGUF));
  const paths = [...inRun.map((name) => join(run.directory, name)), ...ggufs];
  const files = await Promise.all([...results, ...paths.map((path) => ggufFiles(path, run))]);
  const all = [
    ...files.flat(),
    textFile(RUN_FILES.config, config.text),
    textFile(RUN_FILES.chart, chartOf(run)),
  ];
  // The last one of a name counts: --gguf may name one in the run's directory.
  return [...new Map(all.map((file) => [file.path, file])).values()];
}

/** A file with a text. */
export function textFile(path: string, text: string): PushFile {
  const content = new Blob([text]);
  return { path, content, byteLength: content.size };
}

/** The hashes of the data files that are as they were when the run read them, by their flags. */
export async function dataHashes(
  { config, begunMs }: PushedRun,
  signal: AbortSignal,
): Promise<ReadonlyMap<string, string>> {
  const hashes = new Map<string, string>();
  for (const flag of ['data', 'valid']) {
    const path = config[flag];
    if (typeof path !== 'string') {
      continue;
    }
    const found = statSync(path, { throwIfNoEntry: false });
    if (found?.isFile() && found.ctimeMs <= begunMs) {
      const hash = createHash('sha256');
      for await (const piece of createReadStream(path, { signal })) {
        hash.update(piece as Uint8Array);
      }
      hashes.set(flag, hash.digest('hex'));
    }
  }
  return hashes;
}

/** @param name its path below `directory`, by `/` */
async function resultFile(directory: string, name: string): Promise<PushFile> {
  const path = join(directory, name);
  if (name.endsWith('.json') && name !== UNREAD) {
    const text = await readFile(path, 'utf8');
    const own = withoutPaths(text);
    if (own !== text) {
      return textFile(name, own);
    }
  }
  return diskFile(path, name);
}

/** A GGUF and, where there is one, the Modelfile that the command `gguf` writes beside it. */
async function ggufFiles(path: string, { baseName }: PushedRun): Promise<PushFile[]> {
  await requireGguf(path);
  const modelfile = `${path.replace(/\.gguf$/, '')}.Modelfile`;
  const beside = existsSync(modelfile)
    ? [textFile(basename(modelfile), publicModelfile(await readFile(modelfile, 'utf8'), baseName))]
    : [];
  return [diskFile(path), ...beside];
}

async function requireGguf(path: string): Promise<void> {
  if (statSync(path, { throwIfNoEntry: false })?.isFile() === true) {
    const file = await open(path);
    try {
      const { buffer } = await file.read(Buffer.alloc(4), 0, 4, 0);
      if (buffer.toString('latin1') === 'GGUF') {
        return;
      }
    } finally {
      await file.close();
    }
  }
  throw new UsageError(
    `--gguf: expected a file that the command gguf has written, got ${path}. Leave it out where there is none.`,
  );
}

function diskFile(path: string, name = basename(path)): PushFile {
  return { path: name, content: pathToFileURL(path), byteLength: statSync(path).size };
}

/** The picture of the losses, of which a long run has some. */
function chartOf({ steps, baseName }: PushedRun): string {
  const every = Math.ceil(steps.length / CHART_POINTS);
  const shown = steps.map(({ loss }, i) =>
    loss !== null && (i % every === 0 || i === steps.length - 1) ? loss : Number.NaN,
  );
  return lossChart(shown, baseName);
}
