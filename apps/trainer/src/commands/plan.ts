// The command `plan`: tells what a run would take with each strategy, without running it.

import { cpuInfo } from '@shardweave/tensor-core';
import { TRAIN } from '../config/flags.js';
import { resolveConfig } from '../config/resolve-config.js';
import { kindOf } from '../device-choice.js';
import { idleFlags } from '../flags/flag-effects.js';
import { type Flags, RARE } from '../flags/train-flags.js';
import { resolveDevices } from '../launch/adapter-probe.js';
import { planHeaderLines } from '../output/header.js';
import { leftBytes, leftText } from '../plan/left-bytes.js';
import { planRows, planText } from '../plan/plan-table.js';
import { coresOf, openStepClock } from '../plan/rates.js';
import { roomHere } from '../plan/room.js';
import { DeviceHost } from '../rank/device-host.js';
import { defineCommand } from './define-command.js';

interface PlanFlags extends Flags {
  readonly json: boolean;
}

/** The command `plan`. */
export const plan = defineCommand<PlanFlags>({
  options: () =>
    TRAIN.options()
      .name('shardweave plan')
      .description('Tells what a run would take, by strategy: memory to the byte, wire and time.')
      .option('--json', 'all numbers, as JSON'),
  examples: [
    { line: 'plan --model gpt2 --ranks 2', says: 'where GPT-2 fits on this machine' },
    {
      line: 'plan --model gpt2-medium --batch 4 --checkpoint-activations --json',
      says: 'all bytes by tag and phase, for programs',
    },
  ],
  rare: RARE,
  read: ({ json, ...given }, operands) => ({
    ...TRAIN.read!(given, operands),
    json: json === true,
  }),
  run: async (flags, { out, err, entry }) => {
    const asked = await resolveConfig(flags, { entry });
    err.write(
      idleFlags(flags, asked)
        .map((text) => `${text}\n`)
        .join(''),
    );
    const config = { ...asked, device: await resolveDevices(asked.device, entry) };
    const kind = kindOf(config.device[0]!);
    await using host = new DeviceHost();
    const { threads } = config;
    const backend = await host.open(config.device[0]!, { threads: coresOf(config) });
    using clock = await openStepClock(backend);
    const rows = await planRows(config, {
      model: kind === 'cpu' ? { info: cpuInfo({ threads }) } : backend,
      clock,
      room: (run) => roomHere(run, kind),
    });
    if (flags.json) {
      out.write(`${JSON.stringify(rows, null, 2)}\n`);
    } else {
      const { description } = backend.info;
      const leaves = leftText(await leftBytes(config), config);
      const head = planHeaderLines({ ...config, device: [kind] }, { description, leaves });
      out.write(`${head.join('\n')}\n\n${planText(rows)}`);
    }
    return 0;
  },
});
