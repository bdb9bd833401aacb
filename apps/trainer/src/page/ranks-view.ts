// The ranks and their health: what each is doing, when it was last heard of, and how it left.

import { formatBytes, formatMs } from '../format.js';
import { agoText } from '../times.js';
import { card, dataElement, element } from './look/element.js';
import { prefixOf, type RankModel, type RunModel } from './run/run-model.js';
import { tableOf, tableRow } from './table-view.js';

export class RanksView {
  readonly root: HTMLElement;
  readonly #runs: readonly RunModel[];
  readonly #isLive: boolean;
  readonly #body = element('tbody');

  constructor(runs: readonly RunModel[], { isLive }: { readonly isLive: boolean }) {
    this.#runs = runs;
    this.#isLive = isLive;
    const columns = [
      'Rank',
      'State',
      'Device',
      'Step',
      ...(isLive ? ['Heard'] : []),
      'Sent a step',
      'Received',
      'Collectives',
      'Exposed',
    ];
    this.root = card('ranks', 'Ranks', {
      below: [tableOf('Ranks', columns, this.#body, 'Ranks and their health')],
    });
  }

  update(nowMs: number): void {
    const rows = this.#runs.flatMap((run) => run.ranks.map((rank) => this.#row(run, rank, nowMs)));
    this.root.hidden = rows.length === 0;
    this.#body.replaceChildren(...rows);
  }

  #row(run: RunModel, rank: RankModel, nowMs: number): HTMLElement {
    const { reason, ready, status, heardMs } = rank;
    const prefix = prefixOf(run, this.#runs);
    // A rank of a killed run could not tell how it ended.
    const isOpen = rank.state === 'starting' || rank.state === 'ready' || rank.state === 'training';
    const state = isOpen && run.state === 'killed' ? 'killed' : rank.state;
    const badge = element('span', { class: `badge ${state}` }, [state]);
    const why = reason === undefined || state === 'done' ? [] : [` ${reason}`];
    const heard = heardMs === undefined ? '\u2013' : agoText(nowMs - heardMs);
    const bytes = (value: number | undefined) => dataElement(value, formatBytes(value ?? 0));
    const time = (value: number | undefined) => dataElement(value, formatMs(value ?? 0));
    return tableRow([
      `${prefix}${rank.rank}`,
      element('span', { class: 'state' }, [badge, ...why]),
      ready === undefined ? '\u2013' : `${ready.device}, ${ready.description}`,
      dataElement(status?.step, String(status?.step)),
      ...(this.#isLive ? [heard] : []),
      bytes(status?.bytesSent),
      bytes(status?.bytesReceived),
      time(status?.collectiveMs),
      time(status?.exposedMs),
    ]);
  }
}
