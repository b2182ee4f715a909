// Requests to begin with: a state of each kind, and one that is longer than a small model reads.

const noul = (instructions, criteria) => ({ type: "noul", instructions, criteria });
const choice = (instructions, criteria) => ({ type: "choice", instructions, criteria });
const score = (instructions, criteria) => ({ type: "score", instructions, criteria });
const asked = (state, questions) => ({ model: "jev-latest", state, questions });

const COMPLAINTS = Array.from({ length: 20 }, (_, floor) =>
  `The light on floor ${floor} has been out all month. We called, then wrote; nobody came, and two of us have fallen there.`);

export const EXAMPLES = {
  "Support ticket": asked("Parcel 7731 arrived crushed and the lamp inside is in pieces. I would like my money back, please.", {
    team: choice("Which team should handle it?", {
      returns: "Damaged parcels and refunds",
      technical: "Bugs and outages",
      sales: "New purchases",
    }),
    anger: score("How upset is the customer?", ["Calm", "Annoyed but civil", "Furious"]),
    refund: noul("Does the customer ask for a refund?"),
  }),
  "Moderation": asked("Nobody asked for your opinion, you clown. Delete your account and do us all a favour.", {
    insult: noul("Is the comment an insult?", { true: "It attacks a person", false: "It may be blunt, but attacks nobody" }),
    action: choice("What should the moderator do?", { keep: "Leave the comment", warn: "Warn its author", remove: "Take it down" }),
  }),
  "Conversation": asked([
    { role: "user", content: "I can't log in, it says my password is wrong." },
    { role: "assistant", content: "I have sent you a link to set a new one. Did it work?" },
    { role: "user", content: "Yes, I'm in again. Thanks a lot!" },
  ], {
    solved: noul("Is the user's problem solved?"),
    mood: score("How does the user feel at the end?", ["Angry", "Neutral", "Happy"]),
  }),
  "JSON record": asked({ service: "checkout", message: "Error rate 42 %, payments fail for all customers", minutes: 12 }, {
    severity: score("How severe is the incident?", ["Cosmetic", "Some users are affected", "Everything is down"]),
    page: noul("Should somebody be woken up for it?"),
  }),
  "Too long to read": asked(`Dear Sir or Madam,\n\n${COMPLAINTS.join("\n\n")}\n\nIf nothing happens by Friday, we shall pay less rent.`, {
    topic: choice("What is the letter about?", { repairs: "Something is broken", noise: "Somebody is loud", moving: null }),
    threat: noul("Does the writer threaten to pay less?"),
  }),
};
