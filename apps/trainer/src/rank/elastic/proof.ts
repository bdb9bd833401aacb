// What the ranks of an elastic job have to have alike: a hash of it that they compare, and short
// hashes of its parts, by which a rank that has something else hears what that is.

import { hash } from 'node:crypto';
import { readdir, readFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { baseModelOf } from '../../model/base-model.js';
import type { PreparedRun } from '../../run-config.js';
import { decidingText, evaluatedOn, tokensOf } from '../../saves/saved-run.js';

/** The parts, and what to do about another one. */
const PARTS = {
  flags: 'Give no other flags than the job has.',
  model: 'Give the same --model.',
  data: 'Give the same --data.',
  'evaluation data': 'Give the same --valid.',
  'numeric class': 'Take a device of the same class.',
  code: 'Install the same version.',
} as const;

type Part = keyof typeof PARTS;

/** The packages whose code a step runs through. */
const PACKAGES = ['collectives', 'ddp-buckets', 'dtypes', 'fsdp', 'nn', 'tensor-core'].map(
  (name) => `@shardweave/${name}`,
);

/** The hexadecimal digits of a part, of whose equality the whole hash decides. */
const PART_DIGITS = 8;

/**
 * Proves what decides the bits of steps; reads a model's weights.
 * @returns the hash of all, and those of the parts in their order: `5e88...|1b4f0e98|...`
 */
export async function proofOf(config: PreparedRun, numericClass: string): Promise<string> {
  const { sha256 } = await baseModelOf(config);
  const values: Readonly<Record<Part, string | undefined>> = {
    flags: decidingText(config),
    model: JSON.stringify([config.modelConfig, sha256]),
    data: tokensOf(config),
    'evaluation data': evaluatedOn(config),
    'numeric class': numericClass,
    code: await codeHash(),
  };
  const parts = Object.keys(PARTS).map((part) =>
    hash('sha256', JSON.stringify([part, values[part as Part]])),
  );
  return [hash('sha256', parts.join()), ...parts.map((part) => part.slice(0, PART_DIGITS))].join(
    '|',
  );
}

/** What differs in two proofs, as a sentence that ends in what to do. */
export function differenceOf(own: string, theirs: string): string {
  const [mine, others] = [own.split('|'), theirs.split('|')];
  const other = (Object.keys(PARTS) as Part[]).filter((_, i) => mine[i + 1] !== others[i + 1]);
  // Two versions may even hash in other ways.
  const known = other.length === 0 || mine.length !== others.length ? (['code'] as const) : other;
  const names = known.join(', ').replace(/, (?=[^,]*$)/, ' and ');
  const what = `its ${names} ${known.length === 1 && known[0] !== 'flags' ? 'is' : 'are'} not what the others have`;
  return `${what}. ${known.map((part) => PARTS[part]).join(' ')}`;
}

/**
 * A hash of the file in which this code is, and of those of the packages that compute steps. The
 * file names what it imports by hashes, so that it tells of all that is built with it; where that
 * is the packages, too, as in a bundle, they are not found.
 */
async function codeHash(): Promise<string> {
  const require = createRequire(import.meta.url);
  const code = hash('sha256', await readFile(new URL(import.meta.url)));
  const packages = PACKAGES.map(async (name) => {
    try {
      const dist = join(dirname(require.resolve(`${name}/package.json`)), 'dist');
      const files = (await readdir(dist)).filter((file) => file.endsWith('.js')).sort();
      return Promise.all(
        files.map(async (file) => hash('sha256', await readFile(join(dist, file)))),
      );
    } catch {
      return [];
    }
  });
  return hash('sha256', [code, ...(await Promise.all(packages)).flat()].join());
}
