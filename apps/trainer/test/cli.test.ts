// These tests cover the binary's table of commands: help, names, and the examples that --help
// prints.

import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { COMMANDS } from '../src/commands/command-table.js';
import { runCli } from './support/run-cli.js';

/** The folder in which examples are run. */
const folder = newFolder();
mkdirSync(join(folder, 'runs/first'), { recursive: true });
writeFileSync(join(folder, 'runs/first/config.yaml'), 'seed: 1\n');

describe('shardweave', () => {
  it('lists its commands, a line each', async () => {
    const { code, out, err } = await runCli(['--help']);
    expect({ code, err }).toEqual({ code: 0, err: '' });
    const rows = COMMANDS.map(({ name, summary }) => `  ${name.padEnd(10)} ${summary}\n`);
    expect(out).toContain(`Commands:\n${rows.join('')}\n`);
    for (const { summary } of COMMANDS) {
      expect(summary.length).toBeLessThan(70);
    }
    expect(await runCli([])).toEqual({ code: 2, out, err: '' });
    expect(await runCli(['help'])).toEqual({ code: 0, out, err: '' });
    expect(await runCli(['--version'])).toEqual({ code: 0, out: '0.0.0\n', err: '' });
  });

  it('has every flag that its README names', async () => {
    const named = (text: string) =>
      [...text.matchAll(/(?<![\w-])--[a-z][\w-]*/g)].map(([flag]) => flag);
    const readme = readFileSync(new URL('../README.md', import.meta.url), 'utf8');
    const helps = COMMANDS.map(({ name }) => runCli(['help', name, 'all']));
    const known = new Set((await Promise.all(helps)).flatMap(({ out }) => named(out)));
    const others = ['--omit', '--bind-to']; // of npm and mpirun
    expect(named(readme).length).toBeGreaterThan(100);
    expect(named(readme).filter((flag) => !known.has(flag) && !others.includes(flag))).toEqual([]);
  });

  it.each([
    ['trian', /^error: expected one of train, .*, got "trian"\. Did you mean train\? See sharda?/],
    ['genrate', /Did you mean generate\?/],
    ['frobnicate', /got "frobnicate"\. See shardweave --help\.\n$/],
    ['--steps', /^error: expected a command before --steps: one of train, /],
  ])('knows which command was meant by %s', async (name, expected) => {
    const { code, out, err } = await runCli([name, '3']);
    expect({ code, out }).toEqual({ code: 2, out: '' });
    expect(err).toMatch(expected);
  });
});

describe.each(COMMANDS.map((entry) => [entry.name, entry] as const))('%s', (name, entry) => {
  it('prints its flags and its examples', async () => {
    const { code, out, err } = await runCli([name, '--help']);
    expect({ code, err }).toEqual({ code: 0, err: '' });
    expect(out).toMatch(new RegExp(`^Usage: shardweave ${name} `));
    const { examples } = await entry.load();
    expect(examples.length).toBeGreaterThan(0);
    const lines = examples.map(({ line, says }) => `  # ${says}\n  shardweave ${line}\n`);
    expect(out).toContain(`\nExamples:\n${lines.join('')}`);
    expect(await runCli(['help', name])).toEqual({ code, out, err });
  });

  it('has examples of flags that there are, with values that they take', async () => {
    const { parse, examples } = await entry.load();
    for (const { line } of examples) {
      const [first, ...args] = wordsOf(line);
      expect(first).toBe(name);
      expect(() => parse(args, () => {}), line).not.toThrow();
    }
  });
});

/** Splits a line as a shell does that has no escapes. Runs go to the folder of this test. */
function wordsOf(line: string): string[] {
  return [...line.replaceAll('runs/', `${folder}/runs/`).matchAll(/'([^']*)'|(\S+)/g)].map(
    ([, quoted, word]) => quoted ?? word!,
  );
}
