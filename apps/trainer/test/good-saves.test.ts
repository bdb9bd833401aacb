// A run that diverges: which of its saves are good, and what it leaves. A learning rate of 1e30
// makes weights that are infinite in one step, whose loss only the step after it knows.

import { existsSync, mkdtempSync, readdirSync, renameSync } from 'node:fs';
import { basename, join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { DivergedError } from '../src/errors.js';
import type { RankEvent } from '../src/rank/events.js';
import { runCli } from './support/run-cli.js';
import { runLine, tinyFlags } from './support/tiny-run.js';

const root = newFolder();
const tiny = tinyFlags(root);

const savesIn = (out: string) => readdirSync(join(out, 'saves')).sort();
const BREAKS = '--lr 1e30 --warmup 0 --clip 0';

describe('a run that diverges', () => {
  const out = () => join(root, 'run');
  const flags = () => `${tiny} --strategy fsdp --ranks 2 --save-every 1 --keep 1 --out ${out()}`;

  it('sets its bad saves aside, though the good one is not among the newest that are kept', async () => {
    const gone: string[] = [];
    const onEvent = (event: RankEvent) =>
      void (event.type === 'saveGone' && gone.push(basename(event.save.directory)));
    await runLine(`${flags()} --steps 3`, { onEvent });
    expect(gone).toEqual(['step-000001', 'step-000002']);
    expect(savesIn(out())).toEqual(['step-000003']);
    const ended = runLine(`${flags()} --steps 9 --resume auto ${BREAKS}`, { onEvent });
    await expect(ended).rejects.toThrow(DivergedError);
    await expect(ended).rejects.toThrow(
      /not a number at step 5: .*step-000004 was not good and is kept as \S+step-000004\.aside\. The last good save is \S+step-000003: convert --from/,
    );
    expect(savesIn(out())).toEqual(['step-000003', 'step-000004.aside']);
    expect(gone).toEqual(['step-000001', 'step-000002', 'step-000004']);
  });

  it('a run that was killed before it diverged sets aside the save that it went on from, too', async () => {
    const saves = join(out(), 'saves');
    renameSync(join(saves, 'step-000004.aside'), join(saves, 'step-000004'));
    const events: number[] = [];
    const again = runLine(`${flags()} --steps 9 --resume auto`, {
      onEvent: (event) => event.type === 'resumed' && events.push(event.from.step),
    });
    await expect(again).rejects.toThrow(/at step 5: .*step-000003: convert/);
    expect(events).toEqual([4]);
    expect(savesIn(out())).toEqual(['step-000003', 'step-000004.aside']);
  });

  it('goes on from the good one with the line that it prints', async () => {
    const line = `train ${flags()} --steps 5 --resume auto ${BREAKS}`;
    const { code, out: said, err } = await runCli(line.split(' '));
    expect(code).toBe(1);
    expect(err).toMatch(/^error: The loss is not a number at step 5/);
    const printed =
      /Go on from its save of step 3 with a smaller rate: shardweave train (.*)\n/.exec(said)![1]!;
    expect(printed).toMatch(/--clip 0 --lr 0\.004 --resume auto$/);
    const again = await runLine(printed);
    expect(again.resumed!.step).toBe(3);
    expect(again.steps.map(({ step }) => step)).toEqual([4, 5]);
    expect(savesIn(out())).toContain('step-000005');
    expect(existsSync(join(out(), 'model'))).toBe(true);
  });
});

describe('weights at the end of a run', () => {
  it.each([
    '--strategy single',
    '--strategy fsdp --ranks 3 --batch 2',
    '--strategy ddp --ranks 2 --precision bf16',
    '--strategy fsdp --ranks 2 --precision fp16',
    '--strategy offload --slices 2',
    '--strategy fsdp --ranks 2 --lora-rank 2',
  ])('%s: become no model where their loss is not finite', async (way) => {
    const path = mkdtempSync(join(root, 'broken-'));
    const line = `train ${tiny} ${way} --quiet --steps 1 ${BREAKS} --out ${path}`;
    const { code, err } = await runCli(line.split(' '));
    expect(err).toMatch(
      /^error: The weights after step 1 have a loss that is (not a number|infinite): the run diverged/,
    );
    expect(code).toBe(1);
    expect(readdirSync(path).filter((name) => /^(model|adapter|summary)/.test(name))).toEqual([]);
  });
});
