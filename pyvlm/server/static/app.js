// The page: joins its parts and decides what follows what.

import { Announcer } from "./announcer.js";
import { listModels } from "./api.js";
import { Composer } from "./composer.js";
import { Conversation } from "./conversation.js";
import { adviceFor, ApiError } from "./errors.js";
import { exchange } from "./exchange.js";
import { KeyDialog } from "./keydialog.js";
import { Model } from "./model.js";
import { Settings } from "./settings.js";
import { forgetKey, readKey } from "./storage.js";
import { Transcript } from "./transcript.js";

const byId = (id) => document.getElementById(id);

let conversation = new Conversation();
const scroller = byId("conversation");
const transcript = new Transcript(byId("transcript"), scroller);
const announcer = new Announcer(byId("announcer"));
const settings = new Settings(byId("settings"));
const keyDialog = new KeyDialog(byId("key-dialog"), byId("key-form"), byId("key-input"), byId("key-cancel"));
const drawer = byId("drawer");
const composer = new Composer({ onSubmit: ask, onStop: stop, present: () => conversation.pictures });

let models = [];
let running = null; // the AbortController of the answer that is being streamed

function stop() {
  running?.abort();
}

/** Runs `call`; asks for the key as long as the server refuses the one it got. */
async function withKey(call) {
  for (;;) {
    const outcome = await call();
    if (outcome?.code !== "invalid_api_key" || !(await keyDialog.ask())) return outcome;
  }
}

// --- what the server can do ---------------------------------------------------------------------

async function connect() {
  const outcome = await withKey(() => listModels().catch((error) => error));
  if (outcome instanceof ApiError) return showUnconnected(outcome);
  if (outcome instanceof Error) throw outcome;
  models = outcome.map((entry) => new Model(entry));
  byId("model-select").replaceChildren(...models.map(({ id }) => new Option(id, id)));
  byId("forget-key").hidden = !readKey();
  composer.notice(null);
  showModel();
}

function showUnconnected(error) {
  byId("model-summary").textContent = "not connected";
  byId("welcome-hint").textContent = "The server did not say what it can do.";
  composer.notice(`${error.code}: ${error.message}. ${adviceFor(error)}`, { text: "Try again", run: connect });
}

function currentModel() {
  return models.find(({ id }) => id === settings.model) ?? models[0] ?? null;
}

function showModel() {
  const model = currentModel();
  if (!model) return;
  document.title = `${model.id} · pyvlm`;
  byId("model-summary").textContent = model.summary;
  byId("welcome-hint").textContent = model.hint;
  settings.disable(model.unsupportedParameters);
  composer.use(model);
  byId("server-facts").replaceChildren(...model.facts.flatMap(([name, value]) => {
    const term = document.createElement("dt");
    const fact = document.createElement("dd");
    term.textContent = name;
    fact.textContent = value;
    return [term, fact];
  }));
}

// --- a question and its answer ------------------------------------------------------------------

async function ask(text, pictures) {
  if (!currentModel()) await connect();
  const model = currentModel();
  if (!model || !settingsAreValid()) return composer.giveBack(text, pictures);
  byId("welcome").hidden = true;
  announcer.clear();
  composer.setBusy(true);
  running = new AbortController();
  // A new chat puts another object in its place: what this one still brings is then of no interest.
  const talk = conversation;
  talk.addQuestion(text, pictures);
  const shown = transcript.addQuestion(text, pictures);
  try {
    const error = await withKey(() => answer(talk, model, running.signal));
    if (talk === conversation) settle(error, shown);
  } finally {
    running = null;
    composer.setBusy(false);
  }
}

/** One try at the answer. Returns what ended it early: an ApiError, "stopped", or null. */
async function answer(talk, model, signal) {
  const view = transcript.addAnswer();
  let messages;
  try {
    messages = await talk.messages(settings.system);
  } catch (cause) {
    const error = new ApiError({ code: "unreadable_file", message: cause.message });
    view.fail(error);
    return error;
  }
  const request = { model: model.id, messages, ...settings.sampling };
  const { text, error } = await exchange(request, { view, announcer, signal });
  if (text) talk.addAnswer(text);
  if (error?.code === "invalid_api_key") view.remove(); // the dialog says it
  return error;
}

/** A question without an answer goes back to the box, to be changed and sent again. */
function settle(error, shown) {
  if (error === "stopped") announcer.say("Stopped.");
  if (error === null || conversation.turns.at(-1)?.role !== "user") return;
  const { text, pictures } = conversation.takeBack();
  shown.classList.add("withdrawn");
  composer.giveBack(text, pictures);
  if (error.code === "invalid_api_key") composer.notice(`${error.code}: ${error.message}. ${adviceFor(error)}`);
  const index = pictureIndex(error.param);
  if (index !== null) composer.markWrong(index - conversation.pictures.length);
}

/** The picture that an error names, counted over the whole conversation. */
function pictureIndex(param) {
  const found = /^images\[(\d+)\]$/.exec(param ?? "");
  return found ? Number(found[1]) : null;
}

function settingsAreValid() {
  const field = settings.invalidField;
  if (!field) return true;
  drawer.showModal();
  field.reportValidity();
  return false;
}

// --- buttons and keys ---------------------------------------------------------------------------

function newChat() {
  stop();
  conversation.close();
  conversation = new Conversation();
  transcript.clear();
  announcer.clear();
  byId("welcome").hidden = false;
  composer.reset();
}

byId("new-chat").addEventListener("click", newChat);
byId("open-drawer").addEventListener("click", () => drawer.showModal());
byId("close-drawer").addEventListener("click", () => drawer.close());
drawer.addEventListener("click", (event) => { if (event.target === drawer) drawer.close(); });
byId("reset-settings").addEventListener("click", () => settings.reset());
byId("model-select").addEventListener("change", showModel);
byId("forget-key").addEventListener("click", () => {
  forgetKey();
  byId("forget-key").hidden = true;
});
document.addEventListener("keydown", (event) => {
  const inDialog = document.querySelector("dialog[open]");
  if (event.key === "Escape" && !event.isComposing && !inDialog) stop();
});

connect();
