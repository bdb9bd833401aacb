// Every flag of every command is typed in ways in which nobody should, but some do: it is refused
// in a sentence before the command does anything.

import { describe, expect, it } from 'vitest';
import { COMMANDS } from '../src/commands/command-table.js';
import { UsageError } from '../src/errors.js';
import { type Flag, keyOf } from '../src/flags/flag.js';
import { checkValue } from '../src/flags/flag-kinds.js';
import { runCli } from './support/run-cli.js';

/** The flags of the commands, which users script against; flags.test.ts has those of train. */
const NAMES: Readonly<Record<string, readonly string[]>> = {
  generate: [
    ...['--model', '--adapter', '--tokenizer', '--prompt', '--chat', '--system', '--tools'],
    ...['--max-tokens', '--temperature', '--top-k', '--top-p', '--min-p'],
    ...['--repetition-penalty', '--seed', '--stop', '--precision', '--base-type'],
    ...['--strategy', '--device', '--device-budget', '--threads', '--products', '--quiet'],
  ],
  eval: [
    ...[
      '--model',
      '--adapter',
      '--tokenizer',
      '--data',
      '--task',
      '--max-tokens',
      '--train-on-prompt',
      '--seq',
      '--batch',
    ],
    ...['--cache', '--json', '--precision', '--base-type', '--strategy', '--device'],
    '--device-budget',
    ...['--threads', '--products'],
  ],
  embed: [
    ...['--model', '--adapter', '--tokenizer', '--data', '--field', '--prompt', '--dimensions'],
    ...['--out', '--mine-negatives', '--negatives', '--margin', '--seq', '--chunk-size'],
    ...['--precision', '--base-type', '--strategy', '--device', '--device-budget', '--threads'],
    ...['--products', '--quiet'],
  ],
  verify: ['<RUN>', '--steps', '--data', '--ranks', '--quiet'],
  replay: ['<RUN>', '--step', '--rows', '--data', '--page', '--json', '--quiet'],
  bisect: ['<RUN>', '<OTHER>', '--quiet'],
  report: ['<RUN...>', '--out', '--quiet'],
  inspect: ['<PATH>', '--tensors', '--verify', '--json'],
  convert: ['--from', '--out', '--to', '--dtype', '--quiet'],
  merge: ['--model', '--adapter', '--out', '--dtype', '--quiet'],
  gguf: ['--model', '--out', '--adapter', '--type', '--quiet'],
  onnx: ['--model', '--out', '--dtype', '--quiet'],
  push: ['--from', '--to', '--private', '--yes', '--gguf', '--quiet'],
  doctor: ['--json', '--cache', '--clear-cache'],
};

/** Values that are wrong for some flags. */
const STRANGE = [
  ...['', ' ', '-1', '0', '1.5', '1e999', '99999999999999999999', 'NaN', '0x10', '\u0663'],
  ...['x\0y', 'line\nline', '1GB', '64M', '-1GB', '50%', '1,000', 'true', '[1]', '--help me'],
  ...['mps', 'cuda:0', 'float16', 'fp8'],
];

const commands = await Promise.all(
  COMMANDS.map(async ({ name, load }) => ({ name, ...(await load()) })),
);
const trains = Object.keys(commands.find(({ name }) => name === 'train')!.flags);

const isOperand = ({ typed }: Flag<unknown>) => !typed.startsWith('-');
const takesValue = (flag: Flag<unknown>) => isOperand(flag) || flag.typed.includes(' ');
/** The flag as it is typed without a value. */
const nameOf = ({ typed }: Pick<Flag<unknown>, 'typed'>) => typed.split(' ')[0]!;

/** What is printed of a line that is refused, without the hint that all have; nothing else is. */
async function refusalOf(line: readonly string[]): Promise<string> {
  const { code, out, err } = await runCli(line);
  expect({ code, out }, line.join(' ')).toEqual({ code: 2, out: '' });
  expect(err).toMatch(/^error: .+ See --help\.\n$/s);
  expect(err).not.toMatch(/\n\s+at /);
  return err.slice('error: '.length, -' See --help.\n'.length);
}

describe.each(commands)('each flag of $name', ({ name, flags, parse }) => {
  const all = Object.entries(flags);
  const valued = all.filter(([, flag]) => takesValue(flag));
  const named = all.filter(([, flag]) => !isOperand(flag)).map(([, flag]) => nameOf(flag));

  /** What the command needs beside a flag, and the flag with a value. */
  const lineOf = (flag: Flag<unknown>, value: string) => {
    const needed = all.flatMap(([, other]) => (other.isNeeded && other !== flag ? [other] : []));
    const options = needed
      .filter((other) => !isOperand(other))
      .map(
        ({ kind, ...other }) => `${nameOf(other)}=${kind.schema.safeParse('x').success ? 'x' : 1}`,
      );
    const operands = all.flatMap(([, each]) => (isOperand(each) ? [each] : []));
    const typed = operands.map((operand) => (operand === flag ? value : 'x'));
    return isOperand(flag)
      ? [...options, '--', ...typed]
      : [...options, ...typed, `${nameOf(flag)}=${value}`];
  };

  it('stays', () => {
    const found = all.map(([, flag]) => nameOf(flag));
    expect(name === 'train' || found).toEqual(name === 'train' || NAMES[name] || found);
    expect(name === 'plan' ? all.map(([flag]) => flag) : []).toEqual(
      name === 'plan' ? [...trains, 'link', 'json'] : [],
    );
  });

  it.each(valued)('takes a strange value, or refuses it in a sentence: %s', async (flag, entry) => {
    const { kind, typed } = entry;
    const called = isOperand(entry) ? typed : `--${keyOf(flag)}`;
    const isList = typed.includes('...') || kind.isRepeated === true;
    for (const value of STRANGE) {
      const line = lineOf(entry, value);
      const { problem } = checkValue(kind, kind.read(isList ? [value] : value), `"${value}"`);
      if (problem !== undefined) {
        expect(problem).toMatch(/^expected .+, got ".*"\.( Did you mean \S+\?)?$/s);
        expect(await refusalOf([name, ...line])).toBe(`${called}: ${problem}`);
      } else if (flag === 'config') {
        expect(() => parse(line, () => {})).toThrow(UsageError);
      } else {
        const found = (parse(line, () => {}) as Readonly<Record<string, unknown>>)[flag];
        expect(typeof found === 'number' ? Number.isFinite(found) : found !== undefined).toBe(true);
      }
    }
  });

  it('takes no value where it is on or off', async () => {
    for (const [, flag] of all.filter(([, other]) => !takesValue(other))) {
      for (const value of ['', 'true', '0']) {
        const refusal = await refusalOf([name, ...lineOf(flag, value)]);
        expect(refusal).toBe(`${flag.typed} takes no value, got "${value}".`);
      }
    }
  });

  it('is told where it is mistyped', async () => {
    const needed = all.filter(([, { isNeeded }]) => isNeeded);
    const line = needed.map(([, flag]) => (isOperand(flag) ? 'x' : `${nameOf(flag)}=x`));
    for (const right of named) {
      for (const wrong of [`${right}x`, `${right}xy=1`, right.toUpperCase()]) {
        const refusal = await refusalOf([name, ...line, wrong]);
        expect(refusal).toMatch(new RegExp(`^unknown option '${wrong}'\\.`));
        if (wrong === `${right}x`) {
          expect(refusal).toBe(`unknown option '${wrong}'. Did you mean ${right}?`);
        }
      }
    }
  });
});
