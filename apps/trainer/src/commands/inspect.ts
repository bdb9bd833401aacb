// The command `inspect`: tells what a directory holds, and whether a save is whole.

import { TrainerError, UsageError } from '../errors.js';
import { flag, needed, type ValuesOf } from '../flags/flag.js';
import { file, onOff } from '../flags/flag-kinds.js';
import { type Holding, problemIn, readHolding } from '../inspect/holding.js';
import { holdingText, sumsOf } from '../inspect/holding-text.js';
import { defineCommand } from './define-command.js';

const FLAGS = {
  path: needed(file, ['<PATH>', 'such as runs/first, or runs/first/saves/step-000120']),
  tensors: flag(onOff, false, ['--tensors', 'name, dtype, shape and bytes of each']),
  verify: flag(onOff, false, [
    '--verify',
    "read every piece of a save, or of a run's saves, and check it",
  ]),
  json: flag(onOff, false, ['--json', 'all of it, as JSON']),
};

/** The command `inspect`. */
export const inspect = defineCommand({
  name: 'inspect',
  description:
    'Tells what a save, a run, a directory of adapters, a model directory or a GGUF file holds.',
  flags: FLAGS,
  examples: [
    { line: 'inspect runs/first', says: 'the saves of a run, the newest first' },
    {
      line: 'inspect runs/first/saves/step-000120 --verify',
      says: 'step, losses and sizes of one, and whether each piece is as it was written',
    },
    { line: 'inspect DIR --tensors', says: 'every tensor of a model' },
    { line: 'inspect base.gguf', says: 'how much of a file is in which type' },
  ],
  run: async (flags, { out }) => {
    const holding = await readHolding(flags.path);
    const places = flags.verify ? savesIn(holding, flags.path) : [];
    out.write(
      flags.json
        ? `${JSON.stringify(asJson(holding, flags), null, 2)}\n`
        : holdingText(holding, { withTensors: flags.tensors }),
    );
    const problems: string[] = [];
    for (const place of places) {
      const problem = await problemIn(place);
      if (problem !== undefined) {
        problems.push(problem);
      }
    }
    if (problems.length > 0) {
      throw new TrainerError(
        `${problems.length} of ${places.length} saves damaged. ${problems.join(' ')}`,
      );
    }
    if (flags.verify && !flags.json) {
      out.write('every piece is as it was written\n');
    }
    return 0;
  },
});

/** The saves that are to be verified. */
function savesIn(holding: Holding, path: string): string[] {
  if (holding.kind === 'save') {
    return [holding.path];
  }
  if (holding.kind === 'run') {
    return holding.saves.map((save) => save.path);
  }
  throw new UsageError(
    `--verify: ${path} holds a file without checksums, so there is nothing to check it by. Give a save or a run with saves.`,
  );
}

/** The holding as JSON. Tensors are summed up, and with --tensors also listed. */
function asJson(holding: Holding, { tensors: isListed }: ValuesOf<typeof FLAGS>): object {
  const one = <T extends Exclude<Holding, { kind: 'run' }>>({ tensors, ...rest }: T) => ({
    ...rest,
    sums: sumsOf(tensors),
    ...(isListed ? { tensors } : {}),
  });
  return holding.kind === 'run'
    ? { ...holding, saves: holding.saves.map((save) => ('problem' in save ? save : one(save))) }
    : one(holding);
}
