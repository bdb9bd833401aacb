// The command `plan`: tells what a run would take with each strategy, without running it.

import { cpuInfo } from '@shardweave/tensor-core';
import { TRAIN } from '../config/flags.js';
import { resolveConfig } from '../config/resolve-config.js';
import { kindOf } from '../device-choice.js';
import { flag } from '../flags/flag.js';
import { idleFlags } from '../flags/flag-effects.js';
import { bitRate, onOff } from '../flags/flag-kinds.js';
import { resolveDevices } from '../launch/adapter-probe.js';
import { resolveProducts } from '../launch/resolve-products.js';
import { planHeaderLines } from '../output/header.js';
import { leftBytes, leftText } from '../plan/left-bytes.js';
import { planRows, planText } from '../plan/plan-table.js';
import { coresOf, openStepClock } from '../plan/rates.js';
import { roomHere } from '../plan/room.js';
import { DeviceHost } from '../rank/device-host.js';
import { defineCommand } from './define-command.js';

const OWN_FLAGS = {
  link: flag(bitRate, undefined, [
    '--link <RATE>',
    "what a step's bytes take between hosts at so many bits a second, such as 1gbit",
  ]),
  json: flag(onOff, false, ['--json', 'all numbers, as JSON']),
};

/** The command `plan`. */
export const plan = defineCommand({
  ...TRAIN,
  name: 'plan',
  description: 'Tells what a run would take, by strategy: memory to the byte, wire and time.',
  flags: { ...TRAIN.flags, ...OWN_FLAGS },
  model: 'config',
  groups: { ...TRAIN.groups, 'Options:': { ...TRAIN.groups['Options:'], ...OWN_FLAGS } },
  examples: [
    { line: 'plan --model gpt2 --ranks 2', says: 'where GPT-2 fits on this machine' },
    {
      line: 'plan --model gpt2-medium --batch 4 --checkpoint-activations --json',
      says: 'all bytes by tag and phase, for programs',
    },
  ],
  run: async (flags, { out, err, entry }) => {
    const asked = await resolveConfig(flags, { entry });
    err.write(
      idleFlags(flags, asked)
        .map((text) => `${text}\n`)
        .join(''),
    );
    const device = await resolveDevices(asked.device, entry);
    const products = await resolveProducts({ ...asked, device });
    const config = { ...asked, device, products };
    const kind = kindOf(config.device[0]!);
    await using host = new DeviceHost();
    const { threads } = config;
    const backend = await host.open(device[0]!, { threads: coresOf(config), products });
    using clock = await openStepClock(backend);
    const rows = await planRows(config, {
      model: kind === 'cpu' ? { info: cpuInfo({ threads }) } : backend,
      clock,
      linkBits: flags.link,
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
