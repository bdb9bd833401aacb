// What the front entries of packages export: at most so many values that a reader can look through
// them, and no name for two things. Names behind other entries are spent, too, but by fewer.
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { beforeAll, expect, it } from 'vitest';
import { libraries, ROOT } from './workspace.ts';

/** The most values that each front entry exports. Whoever needs one more says why in the commit. */
const MOST_VALUES: Readonly<Record<string, number>> = {
  checkpoint: 24,
  collectives: 28,
  'ddp-buckets': 10,
  dtypes: 23,
  fsdp: 18,
  gguf: 9,
  'memory-tracker': 13,
  nn: 105,
  offload: 8,
  onnx: 6,
  'shard-store': 11,
  'tensor-core': 106,
};

const faces = new Map<string, Readonly<Record<string, unknown>>>();

beforeAll(async () => {
  for (const { folder, shortName } of libraries()) {
    const entry = pathToFileURL(join(ROOT, folder, 'src/index.ts'));
    faces.set(shortName, await import(entry.href));
  }
});

it.each(Object.entries(MOST_VALUES))('%s exports no more values than %i', (folder, most) => {
  const names = Object.keys(faces.get(folder)!);
  expect(names.length, names.join(' ')).toBeLessThanOrEqual(most);
});

it('has a bound for each package', () => {
  expect([...faces.keys()].sort()).toEqual(Object.keys(MOST_VALUES).sort());
});

it('has no name that is two things in two packages', () => {
  const found = new Map<string, { readonly folder: string; readonly value: unknown }>();
  const twice: string[] = [];
  for (const [folder, face] of faces) {
    for (const [name, value] of Object.entries(face)) {
      const before = found.get(name);
      if (before !== undefined && before.value !== value) {
        twice.push(`${name} of ${before.folder} and ${folder}`);
      }
      found.set(name, { folder, value });
    }
  }
  expect(twice).toEqual([]);
});
