// Forms a job while it is attacked, and tells what that cost rank 0, beside a job that was left
// alone.

import { AttackedJob, type AttackedJobOptions } from './attacked-job.js';
import { type Attack, begin } from './attacks.js';

const MIB = 2 ** 20;

/** The figures of a job that was left alone, by its options. */
const calm = new Map<string, Promise<Figures>>();

interface Figures {
  readonly formMs: number;
  readonly residentMiB: number;
  readonly longestTurnMs: number;
  readonly numRefused: number;
  readonly numUnopened: number;
}

export async function formUnder(
  name: string,
  attack: Attack,
  program: string,
  options: AttackedJobOptions = {},
): Promise<Figures & { readonly calmMiB: number }> {
  const kind = JSON.stringify(options);
  const alone = calm.get(kind) ?? form(() => {}, program, options);
  calm.set(kind, alone);
  const { residentMiB: calmMiB, formMs: calmMs } = await alone;
  const figures = await form(attack, program, options);
  process.stdout.write(
    `${name}: formed in ${figures.formMs.toFixed(0)} ms (${calmMs.toFixed(0)}), longest turn ` +
      `${figures.longestTurnMs.toFixed(0)} ms, ${figures.numRefused} refused, rank 0 at ` +
      `${figures.residentMiB.toFixed(0)} MiB (${calmMiB.toFixed(0)})\n`,
  );
  return { ...figures, calmMiB };
}

async function form(
  attack: Attack,
  program: string,
  options: AttackedJobOptions,
): Promise<Figures> {
  await using job = await AttackedJob.begin(program, options);
  const end = begin(attack, job.port);
  const { formMs, costs } = await job.form();
  end();
  await job.end();
  return { ...costs, formMs, residentMiB: costs.maxResidentBytes / MIB };
}
