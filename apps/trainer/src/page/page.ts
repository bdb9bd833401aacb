// Starts the page of a run that its command reports live, or of runs whose records are in the page
// itself.

import type { PageData } from './page-data.js';
import { RunModel } from './run-model.js';
import { RunPage } from './run-page.js';
import { followRun, type StreamState } from './stream.js';

const MESSAGES: Readonly<Record<StreamState, string>> = {
  open: '',
  lost: 'The command does not answer. What is shown is what it told last; it is asked again.',
  refused:
    'The command does not know this page. Open the whole address that it printed, with what stands behind the #.',
};

function start(): void {
  const data = JSON.parse(document.querySelector('#data')!.textContent!) as PageData | null;
  if (data === null) {
    startLive();
  } else {
    const runs = data.runs.map(({ name, records, isLive = false }) => {
      const run = new RunModel(name, { isLive });
      for (const record of records) {
        run.add(record);
      }
      return run;
    });
    new RunPage(runs, { isLive: false }).draw();
  }
}

function startLive(): void {
  const token = new URLSearchParams(location.hash.slice(1)).get('token') ?? '';
  window.addEventListener('hashchange', () => location.reload());
  let page = new RunPage([new RunModel('run')], { isLive: true });
  void followRun(token, {
    onHistory: (records) => {
      const run = new RunModel('run');
      page.dispose();
      page = new RunPage([run], { isLive: true });
      for (const record of records) {
        run.add(record);
      }
      page.draw();
    },
    onRecord: (record) => {
      page.runs[0]!.add(record);
      page.drawSoon();
    },
    onState: (state) => page.say(MESSAGES[state]),
  });
}

start();
