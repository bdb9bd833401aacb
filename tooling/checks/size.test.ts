// The lines of each package, its source and its tests apart. Growth is a line in lines.yaml, in the
// commit that needs it.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { parse } from 'yaml';
import { ROOT, trackedFiles } from './workspace.ts';

const CODE = /\.(ts|mjs|cjs|js|css|html|py|sh|c)$/;
/** What a change saves beyond these lines is not kept for a later one. */
const SLACK_LINES = 150;

interface Bound {
  readonly source: number;
  readonly tests: number;
  readonly for: string;
}

const bounds = parse(readFileSync(join(import.meta.dirname, 'lines.yaml'), 'utf8')) as Readonly<
  Record<string, Bound>
>;
const counted = countLines();

describe.each(Object.entries(bounds))('%s', (name, bound) => {
  it.each(['source', 'tests'] as const)('has as many lines of %s as it says for whom', (kind) => {
    const lines = counted.get(name)?.[kind] ?? 0;
    const [least, most] = [bound[kind] - SLACK_LINES, bound[kind]];
    expect(lines, `lines.yaml allows ${most}: say for whom there are more`).toBeLessThanOrEqual(
      most,
    );
    expect(lines, `lines.yaml allows ${most}: lower it`).toBeGreaterThan(least);
    expect(bound.for).not.toBe('');
  });
});

it('each folder with code has its line', () => {
  expect([...counted.keys()].filter((name) => bounds[name] === undefined)).toEqual([]);
});

/** The lines of the files under version control, by `packages/nn` or `bench`. */
function countLines() {
  const lines = new Map<string, { source: number; tests: number }>();
  for (const path of trackedFiles().filter((file) => CODE.test(file) && file.includes('/'))) {
    const name = /^(?:(?:packages|apps)\/[^/]+|[^/]+)/.exec(path)![0];
    const kind = /\/test\/|\.test\.ts$/.test(path) ? 'tests' : 'source';
    const of = lines.get(name) ?? { source: 0, tests: 0 };
    of[kind] += readFileSync(join(ROOT, path), 'utf8').split('\n').length - 1;
    lines.set(name, of);
  }
  return lines;
}
